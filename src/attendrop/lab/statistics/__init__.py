"""Statistics of paired runs. Arrays in, numbers out: nothing here knows about models, files or methods.

paired.py         the difference of two methods over the same seeds: interval, tests, power
verdict.py        from these figures to one of five words and a sentence
sequential.py     the same while seeds are still being added
ensembles.py      what the ensemble of all seeds gains
over_tasks.py     one summary of several tasks
tuning_curves.py  the expected best score after k random trials
calibration.py    log loss, Brier score, calibration error, temperature
"""
