"""Many runs: compare methods on paired seeds, tune their fields, and test the results statistically.

spec.py      the specification of one run
design.py    the runs of a study
worker.py    executes runs sequentially and caches data, model and captured graphs
executors/   run workers: as local processes, or as actors of a Ray cluster
records.py   one JSON file for each run that has ended
driver.py    runs a study and stores its records; it can be interrupted and resumed
status.py    the progress of a study
analysis/    from records to verdicts

search_space.py, sampling.py   the search space of `attendrop tune`, and its points
tune_design.py, tune.py        its trials, and the next run
trials.py, tune_result.py      the stored trials, and the result
"""
