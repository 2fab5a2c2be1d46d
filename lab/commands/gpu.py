"""`ftnode lab gpu`."""

from __future__ import annotations

import click

from ftnode.node.cli.options import FiniteRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path


@click.command()
@click.option("--device", metavar="DEVICE", help="As cuda:1 or cpu; default: a card where there is one.")
@click.option("--quick", is_flag=True, help="Tiny sizes on a card, too; a processor always has them.")
@click.option(
    "--minutes", type=FiniteRange(0.1, 60), default=7.0, show_default=True, help="Begin no size after so long."
)
@click.option("--out", metavar="DIR", help="Folder of results; sizes that are there are not measured again.")
@json_option
@unused_home_option
def gpu(device: str | None, quick: bool, minutes: float, out: str | None, as_json: bool, home: str | None) -> int:
    """What one stage makes of a card (tokens/s, MFU, idle time, memory) against a plain torch loop, and four nodes
    against one process. At most nine minutes; without a card, about a minute and a half on the processor. Exit code 1
    when a card's budget is missed."""
    from ftnode.node.compute.devices import decide, found_by_torch

    chosen = device or ("cuda:0" if found_by_torch().get("devices") else "cpu")
    decide(chosen)  # raises UserError where torch has no such card
    from ftnode.lab.parts.gpu import run

    return 0 if run(as_json, chosen, quick, minutes, whole_path(out) if out else None)["passed"] else 1
