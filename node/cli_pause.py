"""`ftnode pause` and `ftnode resume`: the owner's word, written down in the home and told to the nodes that run."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ftnode.node.children import is_running
from ftnode.node.cli_options import home_option, json_option
from ftnode.protocol.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.configuration import Running

LOOK_SECONDS = 0.05
SAY_SECONDS = 10.0
"""Whoever waits longer is told for what."""
DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([smhdw])", re.IGNORECASE)
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
DURATION_SECONDS_MAX = 366 * 86400
which_option = click.option(
    "--peer", "peer", metavar="PEERID", help="Only this one of several; as much of its PeerId as is unique."
)


@click.command()
@click.argument("duration", required=False, metavar="[DURATION]")
@which_option
@click.option("--now", is_flag=True, help="Step aside at once; what only it holds is rebuilt by others.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=120.0, show_default=True,
    help="Seconds to wait until they rest.",
)  # fmt: skip
@json_option
@home_option
def pause(duration: str | None, peer: str | None, now: bool, timeout: float, as_json: bool, home: str | None) -> None:
    """Let this machine's volunteers hand over and free memory and GPU, for DURATION (30m, 2h, 1d) or until `ftnode
    resume`. It outlasts a restart; where nothing runs, the next `ftnode join` starts paused."""
    from ftnode.node.identity import home_directory
    from ftnode.node.pausing import Word, clock

    folder, wall = home_directory(home), time.time()
    until = None if duration is None else wall + parse_duration(duration)
    asked = _say_word(folder, peer, Word(True, until, wall))
    how_long = "until ftnode resume" if until is None else f"until {clock(until, wall)}"
    began = time.monotonic()
    for running in asked:
        _tell(folder, running, "pause", now=now)
    if not asked and not as_json:
        click.echo(f"no volunteer runs here; the next ftnode join of this home starts paused, {how_long}")
    resting = _wait(folder, asked, began, timeout, as_json)
    still = [running.peer for running in asked if running.peer not in resting]
    if as_json:
        click.echo(json.dumps({"until": until, "paused": resting, "running": still}))
    if still:
        names = ", ".join(still)
        raise UserError(
            f"{names} still hands over and pauses then; to free the machine at once: ftnode pause --now", 75
        )


@click.command()
@which_option
@json_option
@home_option
def resume(peer: str | None, as_json: bool, home: str | None) -> None:
    """Let this machine's volunteers go on after `ftnode pause`."""
    from ftnode.node.identity import home_directory
    from ftnode.node.pausing import Word

    folder = home_directory(home)
    asked = _say_word(folder, peer, Word(False, None, time.time()))
    resumed, held = [], {}
    for running in asked:
        state = _tell(folder, running, "resume")
        if state.get("state") == "paused":
            held[running.peer] = str(state.get("why", ""))
        else:
            resumed.append(running.peer)
        if not as_json:
            rests = f"rests on: {held[running.peer]}" if running.peer in held else "goes on"
            click.echo(f"{running.peer} (process {running.pid}) {rests}")
    if as_json:
        click.echo(json.dumps({"resumed": resumed, "paused": held}))
    elif not asked:
        click.echo("no volunteer runs here; the next ftnode join of this home starts at once")


def parse_duration(text: str) -> float:
    """`90s`, `30m`, `2h`, `1d`, `1w`, or several as in `1h30m`, in seconds. Raises UserError (64)."""
    parts = list(DURATION.finditer(text.strip()))
    if not parts or "".join(part.group() for part in parts) != text.strip():
        raise UserError(f"{text} is no duration; write 30m, 2h or 1d, or nothing: until ftnode resume")
    seconds = sum(float(part.group(1)) * UNIT_SECONDS[part.group(2).lower()] for part in parts)
    if not 0 < seconds <= DURATION_SECONDS_MAX:
        raise UserError(f"{text} is no pause: between a second and a year; without a duration: until ftnode resume")
    return seconds


def _say_word(home: Path, peer: str | None, word: Any) -> list[Running]:
    """Write it down, and whom it concerns that runs now. Raises UserError: 64, 69 for `peer`, 73."""
    from ftnode.node.cli_leave import chosen
    from ftnode.node.configuration import running_nodes
    from ftnode.node.identity import is_taken
    from ftnode.node.pause_notes import ALL, write_word

    if peer is not None:
        asked = chosen(home, peer)
        for running in asked:
            write_word(home, running.peer, word)
        return asked
    write_word(home, ALL, word)
    return [running for running in running_nodes(home) if running.run and is_taken(home, running.peer)]


def _tell(home: Path, running: Running, do: str, **fields: Any) -> dict[str, Any]:
    """What the node says of itself then; nothing when its socket is not there, and it finds the note by itself."""
    from ftnode.node.control import ControlError, ask, socket_path

    try:
        return ask(socket_path(home, running.peer), do, **fields)
    except ControlError:
        return {}


def _wait(home: Path, asked: list[Running], began: float, timeout: float, as_json: bool) -> dict[str, float]:
    """Seconds after which each rests; those that do not in time are missing. One that ends rests, too."""
    from ftnode.node.configuration import running_nodes

    resting: dict[str, float] = {}
    patient = began + SAY_SECONDS
    while True:
        told = {running.peer: running.paused for running in running_nodes(home)}
        for running in asked:
            ended = not is_running(running.pid)
            if running.peer not in resting and (ended or told.get(running.peer)):
                resting[running.peer] = time.monotonic() - began
                if not as_json:
                    what = "has ended" if ended else f"rests after {resting[running.peer]:.1f} s: {told[running.peer]}"
                    click.echo(f"{running.peer} {what}")
        if len(resting) == len(asked) or time.monotonic() - began > timeout:
            return resting
        if time.monotonic() > patient:
            patient = float("inf")
            click.echo("waits until others have learnt what only this machine holds; Ctrl-C waits no longer", err=True)
        time.sleep(LOOK_SECONDS)
