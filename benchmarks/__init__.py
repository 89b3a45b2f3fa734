"""Measurements of time, memory and scores. Results are CSV files in `results`; `tables` writes them into the docs."""
