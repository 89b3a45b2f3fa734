"""Why AttendOut does not help yet: an experiment on small training sets with thousands of reward examples.

    python -m studies.verdict.attendout.run --data DATA --model MODEL --minutes 6
    python -m docs.tables                       # writes the tables of docs/verdict-attendout.md

plan.py     the tasks, the fixed drop rates, the games and the rules of every choice; written before the first run
files.py    divides the training examples of a task: a pool to draw from, and the reward set
run.py      runs the stages, one line for each run in docs/results/verdict/attendout-<model>.csv
lab/report.py   the tables

The questions, and the stages that answer them:

oracle      Is there a pattern worth learning? `search` tries fixed drop rates for each layer, `judge` repeats the best
            ones with fresh seeds and scores them on examples that no choice has seen.
generator   Does the generator find it if its reward has no sampling error? `judge` plays the game with the whole reward
            set, with and without random shifts of whole layers (`explore`), beside the usual 64 reward examples.
controls    How much of a result comes from the selection alone? The game without masks, in which attacker and defender
            differ in ordinary dropout, and the game whose generator never learns.
confirm     The same on tasks that no choice has seen.
"""
