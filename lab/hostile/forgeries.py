"""What a hostile peer says: every frame and record that only a liar would make, in one place.

All of them are well-formed, for the wire would refuse others. `alias` is always the liar itself.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.directory.records import Claim, RunNotice, Statement, key_of, sign_record
from ftnode.node.home.identity import peer_id_of
from ftnode.node.links.address_cards import bare, with_card
from ftnode.node.links.seals import Seals
from ftnode.protocol.wire.frames import encode_frame
from ftnode.protocol.words.messages import (
    Begin,
    Certificate,
    Contact,
    Donor,
    Heartbeat,
    Message,
    Plan,
    Status,
    founding_proof,
)
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Rung, Version, next_version
from ftnode.protocol.words.view import View

LAST_NUMBER: Final = 2**48 - 1
"""The highest number that a view may have on the wire."""
NONCE_BITS: Final = 48
LIFETIME_MS: Final = 60_000
FORGED_COMMIT: Final = "forged"
STEPS_AHEAD: Final = 5
"""A forged base is so many steps ahead, so that nobody can make it out of what it has."""
FLOOD_BYTES: Final = 48_000


@dataclass(frozen=True, slots=True)
class Alias:
    """A key, and one life of the peer that it is."""

    key: Ed25519PrivateKey
    peer: Peer

    @classmethod
    def fresh(cls) -> Alias:
        key = Ed25519PrivateKey.generate()
        return cls(key, Peer(peer_id_of(key.public_key().public_bytes_raw()), secrets.randbits(NONCE_BITS)))

    def signed(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """These addresses as our own, with our card."""
        return with_card(self.peer.id, bare(addresses), int(time.time() * 1000), self.key.sign)

    def record(self, run: str, body: Presence | Claim | RunNotice, life_ms: int = LIFETIME_MS) -> SignedRecord:
        """Signed now, alive for `life_ms`."""
        made = int(time.time() * 1000)
        record = sign_record(Statement(run, self.peer, made, made + life_ms, body), self.key.sign)
        return SignedRecord(key_of(run, type(body)), self.peer.id, record, (made + life_ms) / 1000)


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """A record and its place in the directory. `expires`: Unix time in seconds."""

    key: str
    subkey: str
    record: bytes
    expires: float


# Views that nobody voted for.


def led_by(view: View, alias: Peer, number: int | None = None) -> View:
    """The view after `view`, or the one with `number`: nobody voted for it, and the liar leads it as its only voter."""
    after = view.number + 1 if number is None else number
    return replace(view, number=after, previous=view.digest(), leader=alias, voters=(alias,), reason="a forged view")


def held_by(view: View, alias: Peer, number: int) -> View:
    """A forged view in which the liar is in the place of the last block stage's holders."""
    return replace(led_by(view, alias, number), holders=(*view.holders[:-1], (alias,)))


def certificate(view: View, alias: Alias, addresses: tuple[str, ...], step: int) -> Message:
    """The leader's own word that a quorum stands behind the view, with the liar's own signature as its proof.
    `addresses`: of its leader."""
    shown = Certificate(view, True, (Contact(view.leader, addresses),), step, founding_proof(alias.peer))
    return Seals(alias.peer, alias.key.sign).sealed(shown)


def heartbeat(view: View, step: int, quorate: bool, wants_reply: bool = False) -> Heartbeat:
    """Of somebody who goes by `view`; `quorate` as its leader says it."""
    return Heartbeat(view.lineage.id, view.number, quorate, step, (), 0.0, wants_reply, (), (), "", ())


def flood_frame(view: View, step: int, settings: Settings) -> Status:
    """48 kB that the wire admits: a status without a fault, whose list of paths is long."""
    path = (0, (view.leader,) * (settings.stages + 2))
    empty = Status(
        view.lineage.id, view.number, None, step, None, False, False, False, (), None, (), (), (), (path,), view.number
    )  # fmt: skip
    count = FLOOD_BYTES // (len(encode_frame(replace(empty, paths=(path, path)))) - len(encode_frame(empty)))
    return replace(empty, paths=(path,) * count)


def first_begin(view: View, addresses: tuple[str, ...], step: int, settings: Settings) -> Begin:
    """The forged leader commits weights that nobody has, and lends them. `addresses`: its own."""
    base = Version(step + STEPS_AHEAD, FORGED_COMMIT, Attempt(view.number, 0))
    installs = tuple(
        Plan(stage, peer, Rung.REPLICA, (Donor(stage, view.leader, addresses),), 1.0, "a forged plan", None)
        for stage, group in enumerate(view.holders)
        for peer in group
        if peer != view.leader
    )
    return _begin(view, base, Attempt(view.number, 1), installs, settings)


def begin_after(view: View, before: Begin, settings: Settings) -> Begin:
    """The forged leader commits the step of `before`."""
    base = next_version(before.base, view.lineage.id, before.attempt, False)
    return _begin(view, base, Attempt(view.number, before.attempt.n + 1), (), settings)


def _begin(view: View, base: Version, attempt: Attempt, installs: tuple[Plan, ...], settings: Settings) -> Begin:
    shares = ((view.holders[0][0], tuple(range(settings.microbatches))),)
    return Begin(
        view.lineage.id, view.number, base.step + 1, attempt, base, False, False, True, False, settings.window, shares,
        (), installs, (), (),
    )  # fmt: skip


# Records of the directory.


def claim(view: View, alias: Alias, addresses: tuple[str, ...]) -> SignedRecord:
    """To a place in a forged view."""
    return alias.record(view.run, Claim(view.stages_of(alias.peer), addresses, view))


def presence(view: View, alias: Alias, addresses: tuple[str, ...], room: int) -> SignedRecord:
    """Of a standby with room for `room` stages, the head among them."""
    return presence_at(view, alias, alias.signed(addresses), room)


def presence_at(view: View, alias: Alias, addresses: tuple[str, ...], room: int) -> SignedRecord:
    """The same with a list of addresses as it is, whatever its card."""
    body = Presence(alias.peer, addresses, view.lineage.id, view.number, room, True, (), (), (), 1e6)
    return alias.record(view.run, body)


def presences(view: View, addresses: tuple[str, ...], room: int, count: int) -> Iterable[SignedRecord]:
    """Each of an identity of its own."""
    return (presence(view, Alias.fresh(), addresses, room) for _ in range(count))


def foreign_notice(run: str, name: str, alias: Alias, addresses: tuple[str, ...]) -> SignedRecord:
    """A run with another id that has the name of `run`."""
    other = run[::-1] if run[::-1] != run else "0" * len(run)
    return alias.record(other, RunNotice(name, addresses))
