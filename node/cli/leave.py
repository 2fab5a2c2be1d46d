"""`ftnode leave`: the volunteers of this machine hand over what only they hold, and stop. After the end of a run
there is nobody to hand over to, so that whoever has a last copy stays. With a time they end then, whatever is
unfinished, and hand over what is worth most."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.options import FiniteRange, home_option, json_option, seconds_of, volunteer_option
from ftnode.node.home.duration import duration
from ftnode.node.home.waiting import LongWait
from ftnode.node.machine.child_processes import is_running, process_of
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.owner.join_options import Running
    from ftnode.protocol.holder.own_departure import HandedOver

ERRORS = "cli_leave"

LOOK_SECONDS = 0.1
OVERDUE_SECONDS = 5.0
"""After its time a node that is still there is told to stop at once."""
ENDING_SECONDS = 2.0
"""For a process to end that let go of its socket first."""


@click.command()
@volunteer_option
@click.option("--now", is_flag=True, help="Stop at once; what only it holds is rebuilt by others.")
@click.option(
    "--within", metavar="TIME", callback=seconds_of,
    help="End so soon, as 30s, whatever is unfinished; until then hand over what is worth most.",
)  # fmt: skip
@click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=300.0, show_default=True,
    help="Seconds to wait until they have left.",
)  # fmt: skip
@json_option
@home_option
def leave(peer: str | None, now: bool, within: float | None, timeout: float, as_json: bool, home: str | None) -> None:
    """Ask this machine's volunteers to leave, and wait until they have. While the run goes on others first learn what
    only they hold; after its end one with the last copy of a stage stays until the model was exported, or --now."""
    if now and within is not None:
        raise UserError("--now and --within exclude each other; leave one of them out")
    from ftnode.node.home.identity import home_to_read
    from ftnode.node.owner.join_options import running_nodes
    from ftnode.node.owner.left_note import read_left
    from ftnode.node.owner.left_note import told as told_fate

    folder = home_to_read(home)
    asked = chosen(folder, peer)
    began, wait = time.monotonic(), LongWait()
    timeout = timeout if within is None else max(timeout, within + 2 * OVERDUE_SECONDS)
    told: set[str] = set()
    """Those who have heard it by their socket, `--now` included."""
    for running in asked:
        first = not running.leaving  # a second signal would end it
        if (now or first or within is not None) and ask(folder, running, now, within, signals=now or first):
            told.add(running.peer)
        if not as_json:
            what = "stops at once" if now else "is asked to leave"
            what += f" within {duration(within)}" if within is not None else ""
            click.echo(f"{running.peer} (process {running.pid}) {what}")
    left: dict[str, float] = {}
    fates: dict[str, HandedOver] = {}
    keeps: dict[str, tuple[int, ...]] = {}
    twice = {running.peer for running in asked if running.leaving or not now or running.peer in told}
    time.sleep(LOOK_SECONDS)
    while len(left) + len(keeps) < len(asked):
        noted = [running for running in running_nodes(folder) if running.leaving]
        heard = {running.peer for running in noted} - twice
        keeps = {} if now or within is not None else {running.peer: running.keeps for running in noted if running.keeps}
        keeps = {each.peer: keeps[each.peer] for each in asked if each.peer in keeps and each.peer not in left}
        for running in asked:
            if running.peer in heard:  # once more, as a second Ctrl-C; two that come together would be one
                ask(folder, running, now)
                twice.add(running.peer)
            if running.peer not in left and not is_running(running.pid):
                left[running.peer] = time.monotonic() - began
                fate = read_left(folder, running.peer, running.pid)
                if fate is not None:
                    fates[running.peer] = fate
                if not as_json:
                    became = f": {told_fate(fate)}" if fate is not None and any(fate) else ""
                    click.echo(f"{running.peer} has left after {left[running.peer]:.1f} s{became}")
        if within is not None and time.monotonic() - began > within + OVERDUE_SECONDS:
            now, within = True, None  # the socket did not answer, or the node does not
            for running in asked:
                if running.peer not in left:
                    ask(folder, running, now)
        if time.monotonic() - began > timeout:
            break
        if line := wait.look(f"{len(asked) - len(left)} to hand over what only they hold", time.monotonic()):
            click.echo(f"ftnode: {line}", err=True)
        time.sleep(LOOK_SECONDS)
    if as_json:
        still = [each.peer for each in asked if each.peer not in left]
        stages = {peer: fate._asdict() for peer, fate in fates.items()}
        click.echo(json.dumps({"left": left, "running": still, "keeps": keeps, "stages": stages}))
    _refuse_last_copies(keeps)
    if len(left) < len(asked):
        names = ", ".join(each.peer for each in asked if each.peer not in left)
        raise UserError(f"{names} is still handing over; wait on, or stop at once with: ftnode leave --now", 75)


def _refuse_last_copies(keeps: Mapping[str, tuple[int, ...]]) -> None:
    """Raises UserError (75) when somebody stays for the model's sake."""
    if not keeps:
        return
    from ftnode.protocol.words.types import names_of

    told = "; ".join(f"{peer} has the last copy of {names_of(stages)} and stays" for peer, stages in keeps.items())
    raise UserError(
        f"{told}: the run is over, and nobody has exported its model. Get it with ftnode export, and it leaves by "
        "itself; or give it up with: ftnode leave --now", 75,
    )  # fmt: skip


def chosen(home: Path, wanted: str | None) -> list[Running]:
    """Volunteers of this home that run. Raises UserError: 69 and 64 when there is none, or none of that name, 77 when
    the home is another user's."""
    from ftnode.node.home.identity import check_ours, is_taken
    from ftnode.node.owner.join_options import running_nodes
    from ftnode.node.owner.service_homes import other_homes

    check_ours(home)
    # A process id may have been given to another program since; the lock on an identity goes with its owner.
    found = [running for running in running_nodes(home) if running.run and is_taken(home, running.peer)]
    if not found:
        others = ", ".join(map(str, other_homes(home)))
        where = f"choose one of {others} with --home" if others else "another home is chosen with --home"
        raise UserError(f"no volunteer runs here (home {home}); {where}", 69)
    if wanted is None:
        return found
    chosen = [running for running in found if wanted in running.peer]
    if len(chosen) != 1:
        names = ", ".join(running.peer for running in chosen or found)
        text = "is part of several PeerIds, give more of it" if chosen else "is not one of those that run here"
        raise UserError(f"--peer {wanted!r} {text}: {names}", 64)
    return chosen


def ask(home: Path, running: Running, now: bool, within: float | None = None, signals: bool = True) -> bool:
    """By its socket, whatever is in between; else by a signal, of which a second one means `now`, unless not `signals`.
    True: by socket. Who is busy finds the question there when it looks: a signal besides would be a second wish, and
    end it. `within`: seconds that it has, which a signal cannot say. Raises UserError (69) when neither reaches it."""
    from ftnode.node.owner.control_socket import ControlError, NoAnswerYet, socket_path
    from ftnode.node.owner.control_socket import ask as ask_socket

    try:
        ask_socket(socket_path(home, running.peer), "leave", now=now, notice=within)
    except NoAnswerYet:
        return True
    except ControlError:
        if signals:
            _interrupt(home, running)
        return False
    return True


def _interrupt(home: Path, running: Running) -> None:
    """Anybody may have its number: the signal goes to the process that has the identity, or to none."""
    from ftnode.node.home.identity import is_taken, is_taken_by

    deadline = time.monotonic() + ENDING_SECONDS
    with suppress(ProcessLookupError), process_of(running.pid) as send:
        while is_taken(home, running.peer):
            if is_taken_by(home, running.peer, running.pid):
                send(signal.SIGTERM)
                return
            if time.monotonic() > deadline:
                raise UserError(
                    f"{running.peer} does not answer, and process {running.pid} is not seen to be it; "
                    "end it where it was started", 69,
                )  # fmt: skip
            time.sleep(LOOK_SECONDS)
