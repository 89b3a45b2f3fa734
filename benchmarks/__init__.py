"""Measurements of time and memory. Results are CSV files in `results`; `docs.tables` writes them into the docs."""
