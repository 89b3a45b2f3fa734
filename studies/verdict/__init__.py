"""The study behind docs/verdict-first-edition.md: which method helps on small data?

    python -m studies.verdict.data DATA --glue GLUE        # makes the data sets
    python -m studies.verdict.run tune --data DATA --model MODEL
    python -m studies.verdict.choose                       # writes frozen.yaml, which is committed before the next
    python -m studies.verdict.run confirm --data DATA --model MODEL
    python -m studies.verdict.ensemble confirm --data DATA --model MODEL     # the upper line
    python -m studies.verdict.protocols --data DATA --model MODEL            # how much of a gain is selection?
    python -m studies.verdict.page                         # writes the tables and the figure of the page
    python -m studies.verdict.report                       # writes a report as `attendrop compare` does

plan.yaml       the tasks, methods, search spaces and stages; written before the first run
frozen.yaml     the setting of each method, chosen on the development tasks
docs/results/verdict/   one line for each run

From the lines to the page: `parts` reads the lines and knows which parts are complete, `judge` compares the methods,
`recommend` has the rules of the recommendation, `show`, `answers`, `figure` and `page` write.

Rerun a command to continue it: runs that have a line are skipped.
"""
