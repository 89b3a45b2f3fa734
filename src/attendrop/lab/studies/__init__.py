"""Many runs: compare methods on paired seeds, tune their fields, and judge the result with statistics.

spec.py      what one run is
design.py    which runs a study consists of
worker.py    runs them one after the other, and keeps data, model and captured graphs between them
executors/     where workers live: processes on this machine, or actors of a Ray cluster
records.py   one JSON file for each run that has ended
driver.py    runs a study into its folder; killed and started again, it goes on
status.py    how far a study is
analysis/    from records to verdicts

search_space.py, sampling.py   what `attendrop tune` searches, and which points it tries
tune_design.py, tune.py        its trials, and which run comes next
trials.py, tune_result.py      how trials are stored, and the result
"""
