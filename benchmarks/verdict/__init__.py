"""The study behind docs/verdict.md: which method helps on small data?

    python -m benchmarks.verdict.data DATA --glue GLUE        # makes the data sets
    python -m benchmarks.verdict.run tune --data DATA --model MODEL
    python -m benchmarks.verdict.choose                       # writes frozen.yaml, which is committed before the next
    python -m benchmarks.verdict.run confirm --data DATA --model MODEL
    python -m benchmarks.tables                               # writes the tables of docs/verdict.md

plan.yaml       the tasks, methods, search spaces and stages; written before the first run
frozen.yaml     the setting of each method, chosen on the development tasks
docs/results/verdict/   one line for each run

Every command goes on where it stopped: runs whose line exists are not run again.
"""
