"""Peers with keys, made from a number, and the records that they sign."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.directory.records import Claim, RunNotice, Statement, sign_record
from ftnode.node.home.identity import peer_id_of
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View

RUN = "0123456789abcdef"
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Signer:
    key: Ed25519PrivateKey
    peer: Peer

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data)

    def record(self, body: Presence | Claim | RunNotice, age_ms: int = 0, life_ms: int = 30_000) -> bytes:
        """Signed `age_ms` before NOW_MS, alive for `life_ms` from then."""
        made = NOW_MS - age_ms
        return sign_record(Statement(RUN, self.peer, made, made + life_ms, body), self.sign)


def signer(number: int) -> Signer:
    key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    return Signer(key, Peer(peer_id_of(key.public_key().public_bytes_raw()), number))


def presence(who: Signer, addresses: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/1",), capacity: int = 1) -> Presence:
    return Presence(who.peer, addresses, "", -1, capacity, True, (), (), (), 10.0)


def view(*holders: Signer, run: str = RUN, number: int = 0) -> View:
    """Stage k is held by the k-th holder; the first leads."""
    peers = tuple(holder.peer for holder in holders)
    stages = tuple((peer,) for peer in peers)
    return View(run, Lineage("l", 0, len(peers)), number, "", peers[0], stages, peers, (0,) * len(peers), "test")
