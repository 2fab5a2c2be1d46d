"""A run's manifest, for those who have only a link, and for those who bring a newer one. Loads libp2p, so never in a
process that becomes a node: `fetch_apart` asks in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from ftnode.node.home.waiting import spoken
from ftnode.node.manifests.book import read_shown, signer_of
from ftnode.node.manifests.exchange import (
    FRAME_BYTES_MAX,
    MANIFEST_PROTOCOL,
    read_manifest_reply,
    read_refusal,
    request_for,
)
from ftnode.node.manifests.invitation import Invitation
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import PeerError, UserError

ERRORS = "manifest_fetch"

AGAIN_SECONDS: Final = 1.0
"""Until those who answered are asked again about a run that they did not know."""
STARTING_SECONDS: Final = 20.0
"""For the process that asks to start and to end, beside the time that it was given."""


def fetch_manifest(invitation: Invitation, timeout: float) -> tuple[Manifest, str]:
    """The manifest that the link is about, from a peer of its run, checked against the link. While a meeting point
    answers that does not know the run yet, it is asked again.

    Raises UserError: 69 when no peer has it, 76 when what came is not what the link promises.
    """
    from ftnode.node.watch.light_client import exchange

    request = request_for(invitation.run_id)
    with spoken(f"a peer that knows the run {invitation.run_id[:12]}"):
        reply = once_begun(
            lambda left: exchange(
                invitation.peers, left, invitation.run_id, MANIFEST_PROTOCOL, request, FRAME_BYTES_MAX
            ), timeout,
        )  # fmt: skip
    try:
        manifest, text = read_shown(read_manifest_reply(reply), invitation.run_id)
        author = signer_of(manifest, text)
    except PeerError as error:
        raise UserError(f"the peers of the link sent {error}; ask for a new link", 76) from None
    check_author(invitation, author)
    return manifest, text


def once_begun(ask: Callable[[float], bytes], timeout: float) -> bytes:
    """What `ask` gives, which gets the seconds that are left, once somebody knows the run. Raises UserError as it does,
    when nobody who answered knows the run after `timeout` s."""
    from ftnode.node.watch.light_client import NotBegun

    deadline = time.monotonic() + timeout
    while True:
        try:
            return ask(max(0.1, deadline - time.monotonic()))
        except NotBegun:
            if deadline - time.monotonic() <= AGAIN_SECONDS:
                raise
        time.sleep(AGAIN_SECONDS)


def _words(line: str) -> str:
    """Of another process's error, without what is put around it for people."""
    return line.removeprefix("ftnode: ").rpartition(" [E")[0] or line


def check_author(invitation: Invitation, author: str) -> None:
    """Raises UserError (76) when the manifest is signed by somebody else than the link says, or by nobody."""
    if author != invitation.author:
        raise UserError(
            f"the link says that the author is {invitation.author or 'nobody'}, the manifest is signed by "
            f"{author or 'nobody'}; ask for a new link", 76,
        )  # fmt: skip


def show_manifest(addresses: tuple[str, ...], manifest: Manifest, text: str, timeout: float) -> None:
    """Hand a newer manifest to a peer of its run, which passes it on. Raises UserError (69, or 77 when refused)."""
    from ftnode.node.watch.light_client import exchange

    request = request_for(manifest.run_id, text)
    with spoken(f"a peer of the run {manifest.run_id[:12]} that takes it"):
        reply = exchange(addresses, timeout, manifest.run_id, MANIFEST_PROTOCOL, request, FRAME_BYTES_MAX)
    try:
        refusal = read_refusal(reply)
    except PeerError as error:
        raise UserError(f"the peer answered with {error}; try another --peer", 76) from None
    if refusal:
        raise UserError(f"the swarm does not take it: {refusal}", 77)


def fetch_apart(invitation: Invitation, timeout: float) -> str:
    """As `fetch_manifest`, in another process; the text is to be checked again. Raises UserError."""
    command = [
        sys.executable,
        "-m",
        "ftnode.node.cli",
        "run",
        "fetch",
        str(invitation),
        "--timeout",
        f"{timeout:g}",
    ]
    try:
        with spoken(f"the manifest of run {invitation.run_id[:12]} from the peers that are known"):
            done = subprocess.run(command, capture_output=True, timeout=timeout + STARTING_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"no manifest within {timeout:g} s; check that the link's peers run", 69) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UserError(
            _words(said[-1]) if said else "the manifest cannot be fetched; check that the link's peers run",
            done.returncode,
        )
    return done.stdout.decode("utf-8", "replace")
