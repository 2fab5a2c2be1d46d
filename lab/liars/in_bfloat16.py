"""An honest volunteer whose processor makes products in bfloat16, as a card does: `python -m
ftnode.lab.liars.in_bfloat16` and a command line of ftnode."""

from __future__ import annotations

import sys
from dataclasses import replace

from ftnode.node.cli.main import main
from ftnode.node.compute import orders
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.owner.join_options import JoinConfig


def run(arguments: list[str]) -> int:
    """The exit code."""
    as_it_is = orders.compute_config

    def compute_config(config: JoinConfig) -> ComputeConfig:
        return replace(as_it_is(config), products="bfloat16")

    orders.compute_config = compute_config
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
