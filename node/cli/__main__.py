"""`python -m ftnode.node.cli` is `ftnode`."""

from ftnode.node.cli.entry import run_and_exit

run_and_exit()
