"""`ftnode join` from its options to its end: takes the identity, lives as a node as often as its owner lets it, and
clears away. What a pause ends is one life: compute, directory and p2pd go, this process with the identity stays."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

from ftnode.node.home.child_logs import OF_A_NODE, keep_trimmed
from ftnode.node.home.closed_terminal import heeded
from ftnode.node.home.identity import Identity, take_identity
from ftnode.node.home.log_folders import LOG_NAME, clear, hold
from ftnode.node.home.log_format import LogFile, formatter
from ftnode.node.life.bottom_line import BottomLine, terminal_for
from ftnode.node.life.node import Node
from ftnode.node.life.owner_wishes import OwnerWishes
from ftnode.node.links.dead_connections import PING_PROTOCOL, SEEN_PROTOCOL
from ftnode.node.links.dial_back import KNOCK_PROTOCOL
from ftnode.node.links.p2pd import P2pd, P2pdError, unanswered
from ftnode.node.links.punch import PUNCH_PROTOCOL
from ftnode.node.machine.child_processes import raise_files_limit
from ftnode.node.manifests.exchange import MANIFEST_PROTOCOL
from ftnode.node.manifests.joining import admitted, newest_kept
from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.control_socket import ControlServer, socket_path
from ftnode.node.owner.join_options import JoinConfig, forget_running
from ftnode.node.owner.left_note import forget_left
from ftnode.node.owner.limits import limits_text
from ftnode.node.owner.line_limits import bandwidth_of
from ftnode.node.owner.machine_use import MachineUse
from ftnode.node.owner.running_note import others_beside
from ftnode.node.owner.systemd import Supervisor, state_of
from ftnode.node.snapshots.save_request import SnapshotRequests
from ftnode.node.watch.own_work import summary
from ftnode.node.watch.peer_latency import WHO_PROTOCOL
from ftnode.protocol.wire.frames import STEP_PROTOCOL
from ftnode.protocol.words.errors import UserError

ERRORS = "daemon"

log = logging.getLogger(__name__)

LOG_BYTES_MAX: Final = 1 << 26
"""Of node.log; then it begins anew, and the one before is kept."""
AGAIN_SECONDS: Final = 30.0
"""After a pause nobody may answer at first, as when a laptop wakes up elsewhere: it tries again instead of ending."""
UNAVAILABLE: Final = 69

URGENT = (STEP_PROTOCOL, KNOCK_PROTOCOL, WHO_PROTOCOL, MANIFEST_PROTOCOL, PUNCH_PROTOCOL, SEEN_PROTOCOL, PING_PROTOCOL)
"""Greetings and heartbeats never wait behind tensors."""


def run(config: JoinConfig) -> int:
    """Be a node until Ctrl-C, SIGTERM or an error. 0 after a clean leave. Raises UserError."""
    raise_files_limit()
    try:
        config.log_directory.mkdir(parents=True, exist_ok=True)
        in_use = hold(config.log_directory)
        log_file = LogFile(config.log_directory / LOG_NAME, LOG_BYTES_MAX, _on_stderr)
    except OSError as error:
        other = "--home" if config.home in config.log_directory.parents else "--log-dir"
        raise UserError(
            f"cannot write to {config.log_directory}: {error.strerror}; choose another {other}", 73
        ) from None
    log_file.setFormatter(formatter(config.log_format))
    logging.basicConfig(handlers=[log_file], level=logging.INFO)
    for gone in clear(config.log_directory.parents[1], config.log_bytes_max) if config.log_bytes_max else ():
        log.info("removed old logs: %s", gone)
    identity = take_identity(config.home, run=config.manifest.run_id)
    forget_running(config.home, identity.peer_id)  # of who had it before and was killed
    forget_left(config.home, identity.peer_id)
    try:
        failure = trio.run(_live, admitted(config, identity.peer_id), identity)
    finally:
        forget_running(config.home, identity.peer_id)
        identity.release()
        os.close(in_use)
    if failure is not None:
        raise failure
    return 0


def _on_stderr(line: str) -> None:
    with suppress(OSError):  # it may be on the same disk
        print(f"ftnode: {line}", file=sys.stderr, flush=True)


async def _live(config: JoinConfig, identity: Identity) -> UserError | None:
    """Errors for the user are returned, since nurseries would wrap them."""
    speaking = Speaking(config.json, terminal_for(config))
    bottom = BottomLine(speaking)
    machine = MachineUse(config, speaking.say)
    owner = OwnerWishes(config, identity.peer_id, speaking, machine.read)
    numbers = signal.SIGINT, signal.SIGTERM, *heeded(signal.SIGHUP)
    for number in numbers:  # which the receiver puts back: a second Ctrl-C must not cut short what follows the first
        signal.signal(number, signal.SIG_IGN)
    with trio.open_signal_receiver(*numbers) as signals, bottom.gone_at_the_end():
        failure = await _lived(config, identity, owner, bottom, signals)
    machine.close()
    return failure


async def _lived(
    config: JoinConfig, identity: Identity, owner: OwnerWishes, bottom: BottomLine, signals: AsyncIterator[int]
) -> UserError | None:
    """All lives, with what goes on beside them."""
    speaking = bottom.speaking
    async with trio.open_nursery() as nursery, _control(config, identity, owner, nursery):
        nursery.start_soon(owner.listen, signals)
        nursery.start_soon(Supervisor(os.environ).run, lambda: state_of(owner.running_note.last))
        nursery.start_soon(owner.running_note.keep)
        nursery.start_soon(keep_trimmed, config.log_directory, *OF_A_NODE)
        if beside := others_beside(config.home, identity.peer_id):
            speaking.say("beside", beside)
        if config.device_why:
            speaking.say("device", config.device_why)
        if given := limits_text(config.limits):
            speaking.say("limits", given)
        await owner.look()
        nursery.start_soon(owner.watch)
        nursery.start_soon(bottom.keep, lambda: owner.verdict.why if owner.verdict.pause else "")
        failure = await _lives(config, identity, owner, bottom)
        nursery.cancel_scope.cancel()
    if bottom.work.stages:
        speaking.say("summary", summary(bottom.work), **bottom.work.fields())
    return failure


@asynccontextmanager
async def _control(
    config: JoinConfig, identity: Identity, owner: OwnerWishes, nursery: trio.Nursery
) -> AsyncIterator[None]:
    """Commands reach the node. Without a socket they still do, by notes and signals, a little later."""
    try:
        server = ControlServer(socket_path(config.home, identity.peer_id), owner.handlers)
    except OSError as error:
        log.warning("no control socket: %s", error)
        yield
        return
    nursery.start_soon(server.run)
    try:
        yield
    finally:
        server.close()


async def _lives(config: JoinConfig, identity: Identity, owner: OwnerWishes, bottom: BottomLine) -> UserError | None:
    """One life after the other, with pauses in between."""
    lived, patient = False, owner.verdict.pause
    """After a rest, too, nobody may answer at first."""
    while await owner.until_wanted():
        config = newest_kept(config) if lived else config
        failure, paused = await _life(config, identity, owner, bottom)
        gc.collect()  # what the node mapped goes now
        if failure is not None and patient and failure.exit_code == UNAVAILABLE and not owner.leaving:
            bottom.speaking.say("again", f"tries again in {AGAIN_SECONDS:g} s")
            with trio.move_on_after(AGAIN_SECONDS):
                await owner.left()
        elif failure is not None or not paused:
            return failure
        lived = patient = True
    return None


async def _life(
    config: JoinConfig, identity: Identity, owner: OwnerWishes, bottom: BottomLine
) -> tuple[UserError | None, bool]:
    """Why it failed, and whether it ended in a pause."""
    failure, paused = None, False
    async with trio.open_nursery() as nursery:
        owner.starts(nursery.cancel_scope)
        try:
            p2pd = await P2pd.start(
                nursery, identity.path, listen=config.listen, announce=config.announce,
                map_ports=config.port_mapping,
                log_path=config.log_directory / "p2pd.log", bandwidth=bandwidth_of(config.limits, URGENT),
            )  # fmt: skip
        except UserError as error:
            nursery.cancel_scope.cancel()
            owner.ended()
            return error, False
        try:
            node = Node(config, identity, p2pd, await p2pd.addresses(), bottom, owner.running_note)
            bottom.of_life = node.live_parts
            try:
                asked = {**SnapshotRequests(node.saver).handlers, **node.undo_requests.handlers}
                owner.begin(node.departure, asked)
                failure = await node.live(nursery)
                paused = bool(node.departure.pausing) and not node.departure.leaving
            finally:
                bottom.of_life = None
                node.close()
        except P2pdError as error:  # before anybody has heard of the node
            failure = unanswered(error)
        finally:
            p2pd.close()
            owner.ended()
        nursery.cancel_scope.cancel()
    return failure, paused
