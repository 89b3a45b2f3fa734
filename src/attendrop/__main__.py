"""`python -m attendrop`, which is also what `accelerate launch -m attendrop train …` runs."""

from .cli import main

main()
