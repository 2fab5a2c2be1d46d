"""`python -m ftnode.node.cli` is `ftnode`."""

from ftnode.node.cli.main import run_and_exit

run_and_exit()
