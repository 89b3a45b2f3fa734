"""The tables and figures of the papers: what each of them shows, the study that repeats it, and what came out.

entry.py        what an entry of the registry is; importing it loads neither torch nor transformers
addrop.py       the tables and figures of AD-DROP, arXiv 2210.05883
attendout.py    those of AttendOut, arXiv 2104.04692, both versions
registry.py     all of them by name
planning.py     the runs of an entry: one for each row, task, protocol and seed
needs.py        what an entry needs that is not there
measuring.py    numbers from the records of these runs, and from models that were kept
outcome.py      means with intervals, the paper's claims beside them, and what is stored
figures.py      lines, boxes and maps of colours
page.py         the outcome as Markdown
run.py          all of this in order
"""
