"""`ftnode doctor`: what this machine needs, one line each, with the fix. Starts nothing that stays."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ftnode.node.cli.limits import up_option, vram_option
from ftnode.node.cli.options import FiniteRange, devices_option, home_option, json_option, peer_option, warn
from ftnode.node.compute.devices import found_by_torch
from ftnode.node.home.waiting import spoken
from ftnode.node.machine import host_memory
from ftnode.node.owner.limits import Limits, Memory
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.cli.doctor_checkup import Check, PeerAnswer
    from ftnode.node.owner.join_options import Running

NVIDIA = Path("/dev/nvidiactl")


@click.command()
@click.argument("run", metavar="[MANIFEST|LINK]", required=False, default="")
@peer_option
@click.option(
    "--listen", multiple=True, metavar="ADDR",
    help="Multiaddr that ftnode join would listen on; repeats. Default: all of this machine. none: nowhere.",
)  # fmt: skip
@click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=15.0, show_default=True,
    help="Seconds to wait for the peers that are asked.",
)  # fmt: skip
@devices_option
@vram_option
@up_option
@json_option
@home_option
def doctor(
    run: str, peers: tuple[str, ...], listen: tuple[str, ...], timeout: float, device: str, vram: Memory, up: float,
    as_json: bool, home: str | None,
) -> int:  # fmt: skip
    """Check versions, home, port, peers, reachability, clock, disk, memory and GPU. With a run, measure what this
    machine would give it: tokens/s, memory, precision, how many stages, and what limits them. Exit code 1 if something
    fails."""
    checks = []

    def tell(check: Check) -> None:
        checks.append(check)
        if not as_json:
            fix = f"; {check.fix}" if check.fix else ""
            click.echo(f"{check.verdict:<8} {check.name:<14} {check.text}{fix}")

    for check in _checks(peers, listen, timeout, home):
        tell(check)
    offer = None
    if run:
        from ftnode.node.cli.doctor_offer import offer_checks

        measured, offer = offer_checks(run, device, Limits(vram, up, nice=0), home, timeout)
        for check in measured:
            tell(check)
    passed = all(check.verdict != "failed" for check in checks)
    if as_json:
        found = {"format": 1, "passed": passed, "checks": [asdict(check) for check in checks]}
        click.echo(json.dumps(found | ({"offer": offer.fields()} if offer is not None else {})))
    return 0 if passed else 1


def _checks(given: tuple[str, ...], listen: tuple[str, ...], timeout: float, home: str | None) -> Iterator[Check]:
    """Each as soon as it is known."""
    from ftnode.node.cli import doctor_checkup as checkup
    from ftnode.node.cli.join import listen_addresses
    from ftnode.node.home.identity import home_to_read
    from ftnode.node.links.addresses import full_addresses, parse_peers, remembered_peers
    from ftnode.node.owner.join_options import log_root, running_nodes
    from ftnode.node.snapshots.signed_words import unusable

    named = [full for peer in parse_peers(given) for full in full_addresses(peer.peer_id, peer.addresses)]
    listen = listen_addresses(listen)
    yield checkup.versions((sys.version_info[0], sys.version_info[1]), _installed(), _p2pd_trouble())
    try:
        folder = home_to_read(home, needed=False)
    except UserError as error:
        yield checkup.home(str(error).partition("; ")[0], home or "")
        return
    made = _existing(folder)
    trouble = "" if os.access(made, os.W_OK | os.X_OK) else f"{made} cannot be written"
    yield checkup.home(trouble, str(folder), made == folder)
    if (words := checkup.signed_words(unusable(folder))) is not None:
        yield words
    running = running_nodes(folder)
    ours = {node.peer for node in running}
    with _listening(() if running else listen) as (sockets, trouble):
        yield checkup.port(listen or ("no address",), trouble, [text for node in running for text in node.addresses])
        others = named or [text for text in remembered_peers(folder, warn) if text.rpartition("/")[2] not in ours]
        asked = _got_through(_visit(others, [each.getsockname()[1] for each in sockets], timeout), sockets)
    yield checkup.peers(asked, bool(given))
    found = (
        checkup.reachability(asked, _reach(running, timeout)), checkup.clock(asked),
        checkup.same_version(_installed()["ftnode"], asked),
    )  # fmt: skip
    yield from (check for check in found if check is not None)
    logs = _existing(log_root(home))
    yield checkup.disk(shutil.disk_usage(logs).free, str(logs))
    yield checkup.memory(host_memory.available())
    yield checkup.gpu(_probe(), NVIDIA.exists())


def _installed() -> dict[str, str]:
    from ftnode.node.cli.doctor_checkup import NEEDED

    found = {}
    for package in ("ftnode", *NEEDED):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def _p2pd_trouble() -> str:
    from ftnode.node.links.p2pd import p2pd_binary

    try:
        binary = p2pd_binary()
    except UserError as error:
        return str(error).partition(";")[0]
    return "" if os.access(binary, os.X_OK) else f"{binary} cannot be run"


@contextmanager
def _listening(addresses: Sequence[str]) -> Iterator[tuple[list[socket.socket], str]]:
    """TCP sockets where whoever knocks is let in meanwhile, and what went wrong."""
    from ftnode.node.links.listening import KINDS, check_listen, socket_address

    sockets: list[socket.socket] = []
    try:
        try:
            check_listen(addresses)
            for address in addresses:
                target = socket_address(address)
                if target is not None and target[1] == KINDS["tcp"]:
                    sockets.append(socket.create_server((target[2], target[3]), family=target[0], backlog=16))
            trouble = ""
        except UserError as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"cannot listen: {error.strerror}; choose another --listen"
        yield sockets, trouble
    finally:
        for each in sockets:
            each.close()


def _got_through(asked: list[PeerAnswer], sockets: Sequence[socket.socket]) -> list[PeerAnswer]:
    """A peer tells a stranger nothing of what it found at an address, unless the stranger's own key answers there. The
    doctor has none; it sees for itself who has come."""
    came = []
    for each in sockets:
        each.setblocking(False)
        with suppress(OSError):
            connection, _ = each.accept()
            with connection:
                host, port, *_ = connection.getsockname()  # of ours, the one that was dialled
            came.append(f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}")
    return [replace(peer, opened=came[0]) if peer.opened == "" and came else peer for peer in asked]


def _visit(others: Sequence[str], ports: Sequence[int], timeout: float) -> list[PeerAnswer]:
    from ftnode.node.links.addresses import parse_peers

    peers = parse_peers(others)
    if not peers:
        return []
    from ftnode.node.cli.doctor_visit import visit
    from ftnode.node.links.dial_back import UNSPECIFIED

    with spoken(f"answers of {len(peers)} peers"):
        return visit(peers, [f"/ip4/{UNSPECIFIED}/tcp/{port}" for port in ports], timeout)


def _reach(running: Sequence[Running], timeout: float) -> str:
    """What a volunteer that runs here found out about itself."""
    from ftnode.node.watch.light_client import fetch_status

    for node in running:
        if node.run and node.addresses:
            try:
                return fetch_status(node.addresses, timeout).speaker.reach
            except UserError:
                continue
    return ""


def _existing(folder: Path) -> Path:
    """The folder, or the one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _probe() -> dict[str, Any]:
    """torch's word, out of a process of its own."""
    with spoken("torch to say what it finds"):
        return found_by_torch()
