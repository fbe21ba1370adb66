"""`python -m edgelm` is the command line."""

from edgelm.cli import main

main()
