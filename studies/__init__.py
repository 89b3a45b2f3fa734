"""Studies of what methods and defaults are worth. Results are CSV files; `docs.tables` writes them into the docs."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
