"""`python -m sprout`: the command line, for torchrun and wherever no script is on the path."""

from sprout.seed.cli import main

main()
