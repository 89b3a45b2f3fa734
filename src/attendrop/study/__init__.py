"""Many runs: compare methods on paired seeds, tune their fields, and judge the result with statistics.

    design.py    which runs a study consists of
    worker.py    runs them one after the other, and keeps data, model and captured graphs between them
    engines/     where workers live: processes on this machine, or actors of a Ray cluster
    records.py   one JSON file for each finished run
"""
