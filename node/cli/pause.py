"""`ftnode pause` and `ftnode resume`: the owner's word, written down in the home and told to the nodes that run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ftnode.node.cli.options import FiniteRange, home_option, json_option, volunteer_option
from ftnode.node.home.duration import DURATION_SECONDS_MAX, typed_seconds
from ftnode.node.home.waiting import spoken
from ftnode.node.machine.child_processes import is_running
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.owner.join_options import Running
    from ftnode.node.owner.pause_rules import Word

ERRORS = "cli_pause"

LOOK_SECONDS = 0.05
ASK_SECONDS = 1.0
TELL_SECONDS = 5.0
"""For the answer of a node that is told."""


@click.command()
@click.argument("duration", required=False, metavar="[DURATION]")
@volunteer_option
@click.option("--now", is_flag=True, help="Step aside at once; what only it holds is rebuilt by others.")
@click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=120.0, show_default=True,
    help="Seconds to wait until they rest.",
)  # fmt: skip
@json_option
@home_option
def pause(duration: str | None, peer: str | None, now: bool, timeout: float, as_json: bool, home: str | None) -> None:
    """Let this machine's volunteers hand over and free memory and GPU, for DURATION (30m, 2h, 1d) or until `ftnode
    resume`. It outlasts a restart; where nothing runs, the next `ftnode join` starts paused."""
    from ftnode.node.home.identity import home_directory
    from ftnode.node.owner.pause_rules import Word, clock

    folder, wall = home_directory(home, known=True), time.time()
    until = None if duration is None else wall + parse_duration(duration)
    asked, word, trouble = _say_word(folder, peer, Word(True, until, wall, now=now))
    how_long = "until ftnode resume" if until is None else f"until {clock(until, wall)}"
    if not asked and not trouble and not as_json:
        click.echo(f"no volunteer runs here; the next ftnode join of this home starts paused, {how_long}")
    asking = Asking(folder, asked)
    with spoken(lambda: f"{len(asking.awaited())} to rest (Ctrl-C waits no longer)"):
        asking.tell(word, noted=trouble is None)
        asking.wait(timeout, as_json)
    resting, leaving = asking.resting, asking.leaving
    still = [running.peer for running in asked if running.peer not in resting]
    if as_json:
        click.echo(json.dumps({"until": until, "paused": resting, "running": still}))
    if trouble is not None:
        raise trouble
    if silent := [running for running in asking.awaited() if asking.is_silent(running.peer)]:
        names = ", ".join(running.peer for running in silent)
        numbers = " ".join(str(running.pid) for running in silent)
        raise UserError(
            f"{names} does not answer, and pauses when it reads its note; to free the machine at once, end it: "
            f"kill -9 {numbers}", 75,
        )  # fmt: skip
    if slow := [peer for peer in still if peer not in leaving]:
        names = ", ".join(slow)
        raise UserError(
            f"{names} still hands over and pauses then; to free the machine at once: ftnode pause --now", 75
        )
    if leaving:
        names = ", ".join(leaving)
        raise UserError(f"{names} was asked to leave, and does that instead; at once: ftnode leave --now", 75)


@click.command()
@volunteer_option
@json_option
@home_option
def resume(peer: str | None, as_json: bool, home: str | None) -> None:
    """Let this machine's volunteers go on after `ftnode pause`."""
    from ftnode.node.home.identity import home_directory
    from ftnode.node.owner.pause_rules import Word

    folder = home_directory(home, known=True)
    asked, word, trouble = _say_word(folder, peer, Word(False, None, time.time()))
    resumed, held = [], {}
    for running in asked:
        told = _tell(folder, running, "resume", word)
        state = "leaving" if running.leaving else str(told.get("state", ""))
        if state == "paused":
            held[running.peer] = str(told.get("why", ""))
        elif told and state != "leaving":
            resumed.append(running.peer)
        if not as_json:
            silent = "" if told or state else _silent(running, "goes on", trouble is None)
            now = silent or _now(state, held.get(running.peer, ""))
            click.echo(f"{running.peer} (process {running.pid}) {now}")
    if as_json:
        click.echo(json.dumps({"resumed": resumed, "paused": held}))
    if trouble is not None:
        raise trouble
    if not asked and not as_json:
        click.echo("no volunteer runs here; the next ftnode join of this home starts at once")


def _now(state: str, why: str) -> str:
    """What a node does after `ftnode resume`."""
    if state == "leaving":
        return "was asked to leave, and does; join again with ftnode join"
    if state == "handing over":
        return "ends the hand-over that it has begun, and joins again then"
    if state == "starting":
        return "goes on, and joins again"
    return f"rests on: {why}" if state == "paused" else "goes on"


def _silent(running: Running, does: str, noted: bool) -> str:
    """Of a node that said nothing. `does`: what it does by the note, when that could be written."""
    if not is_running(running.pid):
        return "has ended"
    return f"does not answer; it {does} as soon as it reads the note" if noted else "does not answer"


def parse_duration(text: str) -> float:
    """`90s`, `30m`, `2h`, `1d`, `1w`, or several as in `1h30m`, in seconds. Raises UserError (64)."""
    seconds = typed_seconds(text)
    if seconds is None:
        raise UserError(f"{text!r} is no duration; write 30m, 2h or 1d, up to a year, or nothing: until ftnode resume")
    if not 0 < seconds <= DURATION_SECONDS_MAX:
        raise UserError(f"{text} is no pause: between a second and a year; without a duration: until ftnode resume")
    return seconds


def _say_word(home: Path, peer: str | None, word: Word) -> tuple[list[Running], Word, UserError | None]:
    """Write it down; whom it concerns that runs now, the word as it counts, and why it could not be written: who runs
    can be told all the same. Raises UserError: 64, 69 for `peer`, 77 for a home of another user."""
    from ftnode.node.cli.leave import chosen
    from ftnode.node.home.identity import check_ours, is_taken
    from ftnode.node.owner.join_options import running_nodes
    from ftnode.node.owner.pause_notes import ALL, as_newest, write_word

    check_ours(home)
    if peer is not None:
        asked = chosen(home, peer)
        names = [running.peer for running in asked]
    else:
        asked, names = [], [ALL]
    trouble = None
    for name in names:
        word = as_newest(home, name, word)
    try:
        for name in names:
            write_word(home, name, word)
    except UserError as error:
        trouble = error
    if peer is None:
        asked = [running for running in running_nodes(home) if running.run and is_taken(home, running.peer)]
    if trouble is not None and asked:
        click.echo("ftnode: nodes that run are told all the same; they forget it when they end", err=True)
        for running in asked:
            word = as_newest(home, running.peer, word)
    return asked, word, trouble


def _tell(home: Path, running: Running, do: str, word: Word) -> dict[str, Any]:
    """What the node says of itself then; nothing when its socket is not there, and it finds the note by itself."""
    from ftnode.node.owner.control_socket import ControlError, ask, socket_path
    from ftnode.node.owner.pause_notes import fields_of

    try:
        return ask(socket_path(home, running.peer), do, within=TELL_SECONDS, **fields_of(word))
    except ControlError:
        return {}


class Asking:
    """Of a pause: who was asked, who has answered, and who rests."""

    def __init__(self, home: Path, asked: list[Running]) -> None:
        self._home, self._asked, self._began = home, asked, time.monotonic()
        self.resting: dict[str, float] = {}
        """Seconds after which each rests. One that ends rests, too."""
        self.leaving = [running.peer for running in asked if running.leaving]
        self._heard: set[str] = set()

    def awaited(self) -> list[Running]:
        return [each for each in self._asked if each.peer not in self.leaving and each.peer not in self.resting]

    def is_silent(self, peer: str) -> bool:
        """It has a socket at which it never answered. One without finds the note by itself."""
        from ftnode.node.owner.control_socket import socket_path

        return peer not in self._heard and socket_path(self._home, peer).exists()

    def tell(self, word: Word, noted: bool) -> None:
        for running in self._asked:
            told = _tell(self._home, running, "pause", word)
            if told:
                self._heard.add(running.peer)
            elif not running.leaving and is_running(running.pid):
                said = _silent(running, "pauses", noted)
                click.echo(f"ftnode: {running.peer} (process {running.pid}) {said}", err=True)
            if told.get("state") == "leaving" and running.peer not in self.leaving:
                self.leaving.append(running.peer)

    def wait(self, timeout: float, as_json: bool) -> None:
        """Until all rest, or those that do not in time are missing in `resting`."""
        from ftnode.node.owner.join_options import running_nodes

        ask_again = 0.0
        while True:
            why = {running.peer: running.paused for running in running_nodes(self._home)}
            if time.monotonic() >= ask_again:  # a node that cannot write its note says it
                why |= {running.peer: said for running in self.awaited() if (said := self._rests(running.peer))}
                ask_again = time.monotonic() + ASK_SECONDS
            for running in self.awaited():
                ended = not is_running(running.pid)
                if ended or why.get(running.peer):
                    seconds = self.resting[running.peer] = time.monotonic() - self._began
                    if not as_json:
                        what = "has ended" if ended else f"rests after {seconds:.1f} s: {why[running.peer]}"
                        click.echo(f"{running.peer} {what}")
            if not self.awaited() or time.monotonic() - self._began > timeout:
                return
            time.sleep(LOOK_SECONDS)

    def _rests(self, peer: str) -> str:
        """Why, by its own word; empty while it does not, or does not answer."""
        from ftnode.node.owner.control_socket import ControlError, ask, socket_path

        try:
            told = ask(socket_path(self._home, peer), "state", within=ASK_SECONDS)
        except ControlError:
            return ""
        self._heard.add(peer)
        return str(told.get("why", "")) if told.get("state") in ("paused", "frozen") else ""
