"""`ftnode run rollback --by-members`: the nodes of this machine vote to undo steps, and it is said what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.view import majority

ERRORS = "cli_run_rollback_votes"


def vote(home: Path, manifest: Manifest, step: int | None, as_json: bool) -> None:
    """With every node of this home in the run; None: their votes are taken back. Raises UserError: 69 when there is
    none, 75 when none of them has a vote, or does not answer."""
    from ftnode.node.cli.leave import chosen
    from ftnode.node.owner.control_socket import ControlError, ask, socket_path

    nodes = [running for running in chosen(home, None) if running.run == manifest.run_id]
    if not nodes:
        raise UserError(
            f"no node of this home is in {manifest.run.name}; only who takes part can vote: ftnode join", 69
        )
    answers, troubles = list[dict[str, Any]](), dict[str, str]()
    for running in nodes:
        try:
            answers.append(ask(socket_path(home, running.peer), "undo", to=step))
        except ControlError as error:
            troubles[running.peer] = str(error)
    if not answers:
        peer, why = next(iter(troubles.items()))
        raise UserError(f"{peer} cannot vote: {why}; ftnode status shows how the run is", 75)
    _tell(manifest, step, answers[-1], troubles, as_json)


def _tell(manifest: Manifest, step: int | None, told: dict[str, Any], troubles: dict[str, str], as_json: bool) -> None:
    """`told`: what the last node said, which knows the votes of those before."""
    votes = {int(each): int(count) for each, count in told["votes"].items()}
    voters = int(told["voters"])
    needed, here = majority(voters), votes.pop(step, 0) if step is not None else 0
    if as_json:
        found = {
            "run": manifest.run_id, "to_step": step, "step": told["step"], "ordered": told["ordered"],
            "votes": here, "needed": needed, "voters": voters,
            "others": [{"to_step": each, "votes": count} for each, count in votes.items()], "troubles": troubles,
        }  # fmt: skip
        click.echo(json.dumps(found))
        return
    for peer, why in troubles.items():
        click.echo(f"{peer} cannot vote: {why}")
    if step is None:
        click.echo(f"nobody here wants {manifest.run.name} to roll back any more")
    elif told["ordered"]:
        click.echo(
            f"most voters of {manifest.run.name} want it: back to step {step} or to the newest snapshots before it; "
            "ftnode status shows which"
        )
    else:
        missing = needed - here
        click.echo(
            f"{here} of {voters} voters of {manifest.run.name} want to roll back to step {step}: "
            f"{missing} more {'makes' if missing == 1 else 'make'} it an order. This vote stands for an hour, and as "
            "long as this node runs"
        )
    for each, count in votes.items():
        click.echo(f"for step {each} there {'is 1 vote' if count == 1 else f'are {count} votes'}")
