"""Turn the records of a study into the content of its report: verdicts, figures and tables, as one `Analysis`."""

from .build import analyse, analyse_records

__all__ = ["analyse", "analyse_records"]
