"""The tables and figures of the papers on the models that can be had: all-MiniLM-L6-v2 and all-mpnet-base-v2.

    python -m studies.reproduction.run --count                      # runs and expected minutes of every part
    python -m studies.reproduction.run gpu --data DATA --minilm FOLDER --mpnet FOLDER --minutes 28 --records RECORDS
    python -m studies.reproduction.page RECORDS                     # stores what is complete; then `make tables`

RECORDS is a .tar.gz file with the records of all runs and the outcomes of the complete parts. It has no predictions and
no models, so that it stays small and can be carried to another machine. The same command goes on from it.

plan.py      the parts: an entry of `attendrop reproduce`, a model, and what is changed
run.py       runs the parts in order until the minutes are over
page.py      stores the outcomes in docs/results/reproduction, and makes the tables of docs/reproduction.md
"""
