"""Scores of a model while attention positions are dropped at evaluation.

measure.py      the scores of any model
run_folder.py   those of a finished run
figure.py       the figure
"""
