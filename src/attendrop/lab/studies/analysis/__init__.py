"""From the records of a study to what its report says: verdicts, figures and tables, as one `Analysis`."""

from .build import analyse, analyse_records

__all__ = ["analyse", "analyse_records"]
