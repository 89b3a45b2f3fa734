"""Generates the tables of the README and the documentation from measurements, results of studies and method cards.

    python -m docs.tables             # writes the tables
    python -m docs.tables --check     # writes nothing; exit code 1 if a table is out of date

A table stands between two comments, `<!-- table: NAME -->` and `<!-- end of table -->`. `pages` finds and replaces
them, and generates whole files too: the figure of the verdict study, and the preset that it recommends. `timings` makes
the tables of `benchmarks/results`, `research` those of `studies/results`, `methods` those of the cards. The tables of
the verdict study are made in `studies.verdict`.
"""
