"""Addresses of peers: what people type, and those that a home remembers from last time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.home.identity import peer_id_bytes
from ftnode.node.links.hosts import ip_of
from ftnode.node.links.listening import address_bytes, address_text
from ftnode.protocol.words.errors import UserError

EXAMPLE = "/ip4/192.0.2.7/tcp/31337/p2p/12D3KooW…"
REMEMBERED_FILE = "peers.json"
REMEMBERED_MAX = 64
REMEMBERED_BYTES_MAX = 64 * 1024
ADDRESS_BYTES_MAX = 256
THIS_MACHINE = 3
"""Of ranks."""
DIALABLE = ("/ip4/", "/ip6/", "/dns/", "/dns4/", "/dns6/", "/dnsaddr/")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer and where to dial it: multiaddrs without the /p2p part."""

    peer_id: str
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        """The full multiaddr of the first address."""
        return full_addresses(self.peer_id, self.addresses)[0]


def full_addresses(peer_id: str, addresses: Iterable[str]) -> tuple[str, ...]:
    """With the /p2p part, as people copy them."""
    return tuple(f"{address.rstrip('/')}/p2p/{peer_id}" for address in addresses)


def rank(address: str) -> int:
    """Lower is likelier to be reachable by a stranger: public, then private, then this machine only, then relayed."""
    parts = address.split("/")
    if "p2p-circuit" in parts or len(parts) < 3:
        return 4
    host = ip_of(parts[2])
    if host is None:
        return 0  # a name, which somebody chose for strangers
    if host.is_loopback:
        return THIS_MACHINE
    if host.is_link_local:
        return 4
    return 1 if host.is_global else 2


def best_of_each(addresses: Sequence[str]) -> tuple[str, ...]:
    """Those likeliest to be reachable by a stranger, the first of each version of IP: some people have one alone. Where
    nobody but this machine gets there, one."""
    best = min(map(rank, addresses), default=0)
    first: dict[str, str] = {}
    for address in addresses:
        if rank(address) == best:
            first.setdefault(address.split("/")[1] if best < THIS_MACHINE else "", address)
    return tuple(first.values())


def parse_peer(text: str) -> PeerAddress:
    """A full multiaddr. Raises UserError (64) that says what is wrong with it."""
    shown = text if len(text) <= 120 else f"{text[:117]}..."
    address, found, peer_id = text.strip().rpartition("/p2p/")
    if not found and text.startswith("/"):
        raise UserError(f"the address {shown} must end in /p2p/ and the PeerId of whom it is, like {EXAMPLE}")
    if text.startswith("ftnode:"):
        raise UserError(f"{shown!r} is the link of a run and no address; it stands by itself, without --peer")
    if not is_dialable(address):
        raise UserError(f"{shown!r} is no multiaddr of a peer; write it like {EXAMPLE}")
    try:
        peer_id_bytes(peer_id)
    except ValueError:
        raise UserError(f"{shown} does not end in a PeerId; copy the whole address that the peer printed") from None
    return PeerAddress(peer_id, (address_text(address_bytes(address)),))


def is_dialable(address: str) -> bool:
    """Whether this is a multiaddr, without /p2p, of a kind that a stranger may ask us to dial."""
    if len(address) > ADDRESS_BYTES_MAX or not address.startswith(DIALABLE):
        return False
    try:
        address_bytes(address)
    except ValueError:
        return False
    return True


def parse_peers(texts: Iterable[str]) -> tuple[PeerAddress, ...]:
    """Full multiaddrs, those of one peer together, in order of first mention. Raises UserError."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        peer = parse_peer(text)
        found[peer.peer_id] = tuple(dict.fromkeys([*found.get(peer.peer_id, ()), *peer.addresses]))
    return tuple(PeerAddress(peer_id, addresses) for peer_id, addresses in found.items())


def remembered_peers(home: Path, say: Callable[[str], None] = lambda line: None) -> tuple[str, ...]:
    """Full multiaddrs of peers met before, newest first. A file that is missing or spoiled is as good as empty; `say`
    hears of a spoiled one."""
    path = home / REMEMBERED_FILE
    try:
        with path.open("rb") as file:
            texts = json.loads(file.read(REMEMBERED_BYTES_MAX))["peers"]
        if not isinstance(texts, list):
            raise TypeError
    except FileNotFoundError:
        return ()
    except OSError as error:
        say(f"cannot read {path}: {error.strerror}; goes on without the peers that it remembers")
        return ()
    except (ValueError, KeyError, TypeError, RecursionError):
        say(f"{path} is damaged: goes on without the peers that it remembered; it is written anew when a peer answers")
        return ()
    return tuple(text for text in texts[:REMEMBERED_MAX] if _is_peer(text))


def remember_peers(home: Path, peers: Iterable[str]) -> None:
    """Put these full multiaddrs in front of those remembered. The file is replaced whole, the oldest fall off.

    Nothing is lost but convenience when it cannot be written, so that is not an error.
    """
    before = remembered_peers(home)
    merged = tuple(dict.fromkeys([*(text for text in peers if _is_peer(text)), *before]))[:REMEMBERED_MAX]
    if merged == before:
        return
    text = json.dumps({"format": 1, "peers": list(merged)}, indent=1)
    with suppress(OSError), folder_of(home) as folder:
        write_file(home, folder, REMEMBERED_FILE, text)


def _is_peer(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(parse_peer(text))
    except UserError:
        return False
