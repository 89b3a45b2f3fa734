"""`python -m attendrop`, which is also what `accelerate launch -m attendrop train …` runs."""

from .lab.cli import main

main()
