"""The second edition of the verdict: what helps on small data, on many tasks, with matched controls.

    python -m studies.verdict2.run --count                                            # runs and expected minutes
    python -m studies.verdict2.run grid --data DATA --model MODEL --workers 8         # develop: rate and epochs
    python -m studies.verdict2.choose grid
    python -m studies.verdict2.run fields --data DATA --model MODEL --workers 8       # develop: fields of the methods
    python -m studies.verdict2.choose fields                                          # frozen.yaml: commit it
    python -m studies.verdict2.run confirm --data DATA --model MODEL --workers 8
    python -m studies.verdict2.run confirm --data DATA --model MPNET --name mpnet --workers 4
    python -m studies.verdict2.page                                                   # what is there, and what is open

`plan.yaml` was committed before the first run, with its rules. Its hash is in every line. DATA is the folder that
`studies.verdict.data` makes, with the folder `arena` in it: `arena/<name>/{train,test}.parquet`.

plan.py      reads plan.yaml and lists the runs of a stage
worker.py    a worker as the product works: a tenth of the training examples chooses the epoch and the temperature
run.py       runs a stage and appends a line for each run; started again, it goes on
choose.py    chooses rate, epochs and fields by the development lines alone
judge.py     compares every contender with both plains, and applies the rules
page.py      the tables of the page, from the lines
"""
