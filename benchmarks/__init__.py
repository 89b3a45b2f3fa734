"""Measurements of time, memory and scores. The results are CSV files in `results`; `tables` writes them into the docs."""
