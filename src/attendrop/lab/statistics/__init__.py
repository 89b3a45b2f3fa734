"""Statistics of paired runs. Functions of arrays, independent of models, files and methods.

paired.py         the difference of two methods over the same seeds: interval, tests, power
rules.py          intervals with skew and test examples, runs that collapse
verdict.py        turns these figures into one of five verdicts and a sentence
sequential.py     the same while seeds are being added (group-sequential)
ensembles.py      the gain of the ensemble of all seeds
over_tasks.py     one summary of several tasks
tuning_curves.py  the expected best score after k random trials
calibration.py    log loss, Brier score, calibration error, temperature
"""
