"""Many runs: compare methods on paired seeds, tune their fields, and judge the result with statistics.

spec.py      what one run is
design.py    which runs a study consists of
worker.py    executes runs sequentially and caches data, model and captured graphs
executors/   run workers: as local processes, or as actors of a Ray cluster
records.py   one JSON file for each run that has ended
driver.py    runs a study and stores its records; it can be interrupted and resumed
status.py    the progress of a study
analysis/    from records to verdicts

search_space.py, sampling.py   what `attendrop tune` searches, and which points it tries
tune_design.py, tune.py        its trials, and which run comes next
trials.py, tune_result.py      how trials are stored, and the result
"""
