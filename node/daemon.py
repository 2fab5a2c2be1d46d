"""`ftnode join` from its options to its end: takes the identity, starts p2pd, lives as a node, and clears away."""

from __future__ import annotations

import logging
import os
import signal
from functools import partial
from logging.handlers import RotatingFileHandler
from typing import Final

import trio

from ftnode.node.acquaintances import WHO_PROTOCOL
from ftnode.node.bandwidth import Bandwidth, Gate
from ftnode.node.configuration import JoinConfig, forget_running
from ftnode.node.identity import Identity, take_identity
from ftnode.node.joining import admitted
from ftnode.node.knock import KNOCK_PROTOCOL
from ftnode.node.limits import Limits, limits_text
from ftnode.node.log_format import formatter
from ftnode.node.manifest_exchange import MANIFEST_PROTOCOL
from ftnode.node.p2pd import P2pd
from ftnode.node.supervisor import Supervisor, noted_state
from ftnode.node.volunteer import Node
from ftnode.protocol.errors import UserError
from ftnode.protocol.wire import STEP_PROTOCOL

LOG_BYTES_MAX: Final = 1 << 26
"""Of node.log; then it begins anew, and the one before is kept."""


def run(config: JoinConfig) -> int:
    """Be a node until Ctrl-C, SIGTERM or an error. 0 after a clean leave. Raises UserError."""
    try:
        config.log_directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot create {config.log_directory}: {error.strerror}; choose another --log-dir", 73
        ) from None
    log_file = RotatingFileHandler(config.log_directory / "node.log", maxBytes=LOG_BYTES_MAX, backupCount=1)
    log_file.setFormatter(formatter(config.log_format))
    logging.basicConfig(handlers=[log_file], level=logging.INFO)
    identity = take_identity(config.home)
    try:
        failure = trio.run(_live, admitted(config, identity.peer_id), identity)
    finally:
        forget_running(config.home, identity.peer_id)
        identity.release()
    if failure is not None:
        raise failure
    return 0


def bandwidth_of(limits: Limits) -> Bandwidth | None:
    """The gates of a life; None where nothing is limited. Greetings and heartbeats never wait behind tensors."""
    if not limits.up and not limits.down:
        return None
    return Bandwidth(
        up=Gate(limits.up) if limits.up else None,
        down=Gate(limits.down) if limits.down else None,
        urgent=(STEP_PROTOCOL, KNOCK_PROTOCOL, WHO_PROTOCOL, MANIFEST_PROTOCOL),
    )


async def _live(config: JoinConfig, identity: Identity) -> UserError | None:
    """Errors for the user are returned, since nurseries would wrap them."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(os.environ).run, partial(noted_state, config.home, identity.peer_id))
            try:
                p2pd = await P2pd.start(
                    nursery, identity.path, listen=config.listen, announce=config.announce,
                    log_path=config.log_directory / "p2pd.log", bandwidth=bandwidth_of(config.limits),
                )  # fmt: skip
            except UserError as error:
                nursery.cancel_scope.cancel()
                return error
            try:
                node = Node(config, identity, p2pd, await p2pd.addresses())
                if given := limits_text(config.limits):
                    node.speaking.say("limits", given)
                failure = await node.live(nursery, signals)
            finally:
                p2pd.close()
            nursery.cancel_scope.cancel()
    return failure
