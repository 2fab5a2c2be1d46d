"""Signed records of the directory: who is there, which view is in force, which runs exist.

A record is one peer's statement about itself, signed with the key that its PeerId is. It travels as msgpack
`[statement, signature]`, where `statement` is the canonical encoding of a `Statement`. That of a claim is packed by
zlib; the signature is of what is not packed. The DHT around it proves nothing: every reader verifies every record
again, by the same function as the peers that store it.

The key of a record is a function of its content (`key_of`), the subkey is the signer, the expiry is signed. So a
record fits into exactly one place of the DHT for exactly one span of time, whoever carries it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import cast

import msgpack

from ftnode.node.home.identity import Sign, Verify
from ftnode.node.watch.told_on import WORDS_TEXT_MAX
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.words.codec import encode_canonical, from_plain
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.records import LIFETIME_SECONDS_MAX, Presence
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

RECORD_BYTES_MAX = 16 * 1024
PAYLOAD_BYTES_MAX = 3 * RECORD_BYTES_MAX
"""What a record may hold when it is unpacked. A view names each member twice, so zlib makes it shorter by that much."""
ENVELOPE_LIMITS = Limits(size=RECORD_BYTES_MAX, depth=2, items=2, text=RECORD_BYTES_MAX)
STATEMENT_LIMITS = Limits(size=PAYLOAD_BYTES_MAX)
LIFETIME_MS_MAX = int(LIFETIME_SECONDS_MAX * 1000)
CLOCK_SKEW_MS_MAX = 10_000
"""How far ahead of ours a signer's clock may be. A record of such a peer outlives the 90 s by as much at most."""
SIGNATURE_BYTES = 64
ADDRESSES_MAX = 16
ADDRESS_BYTES_MAX = 256
NAME_BYTES_MAX = 64
CLAIMANTS_MAX = 16
"""A key has room for 64 records of the largest size."""
ZLIB_MARK = b"\x78"
"""zlib's first byte. A statement begins with that of a list."""
RUNS_KEY = "ftnode/2/runs"
"""The one key that is known to somebody who knows no run: a bootstrap peer, or `ftnode status` that asks it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A holder's hint: it serves `stages` of `view` and can be reached at `addresses` (multiaddrs without /p2p).

    The whole view travels along, so that each claim is also a copy of the certificate (rule 14). Some members claim.
    """

    stages: tuple[int, ...]
    addresses: tuple[str, ...]
    view: View


@dataclass(frozen=True, slots=True)
class RunNotice:
    """The run `name` exists and I take part in it; ask me about it (`/ftnode/status/1`)."""

    name: str
    addresses: tuple[str, ...]
    words: str = ""
    """How the run is, signed for those who cannot ask me (watch/told_on.py)."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What is signed. `body` says the kind.

    `sequence`: when it was made, Unix time in milliseconds, strictly increasing per signer; so it orders a peer's
    records, across restarts too, and bounds the lifetime: expires_ms − sequence ≤ 90,000.
    """

    run: str
    peer: Peer
    sequence: int
    expires_ms: int
    body: Presence | Claim | RunNotice


def key_of(run: str, kind: type) -> str:
    """Where records of a kind stand: presences and claims per run, notices of all runs together. The number changes
    with what a record says, as that of the protocol does whose messages say the same (STEP_PROTOCOL)."""
    if kind is RunNotice:
        return RUNS_KEY
    return f"ftnode/3/presence/{run}" if kind is Presence else f"ftnode/4/view/{run}"


def claimants(view: View) -> frozenset[Peer]:
    """Members that write claims: the leader, voters, and others. Each claim has all members in it, so that those of all
    would be as large as their square."""
    every = dict.fromkeys((view.leader, *view.voters, *view.members()))
    return frozenset([*every][:CLAIMANTS_MAX])


def next_sequence(previous: int, now_ms: int) -> int:
    """The wall clock, unless it was set back or asked twice within a millisecond."""
    return max(previous + 1, now_ms)


def sign_record(statement: Statement, sign: Sign) -> bytes:
    """The record as it travels. Raises ValueError when it is too big to be stored by anybody."""
    payload = encode_canonical(statement)
    packed = zlib.compress(payload, 9) if isinstance(statement.body, Claim) else payload
    record = cast(bytes, msgpack.packb([packed, sign(payload)], use_bin_type=True))
    if len(record) > RECORD_BYTES_MAX or len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a directory record of {len(record)} bytes exceeds {RECORD_BYTES_MAX}")
    return record


def read_record(record: bytes, now_ms: int, verify: Verify) -> Statement:
    """The statement in a record that is well-formed, in time, about its signer and truly signed. Raises PeerError."""
    packed, signature = _read_envelope(record)
    payload = _unpacked(packed)
    statement = cast(Statement, from_plain(Statement, decode(payload, STATEMENT_LIMITS)))
    if encode_canonical(statement) != payload:
        raise PeerError("a record that is not in its canonical encoding")
    _check_time(statement, now_ms)
    _check_body(statement)
    if not verify(statement.peer.id, payload, signature):
        raise PeerError(f"the signature of a record is not by {statement.peer.id[:60]!r}")
    return statement


def _read_envelope(record: bytes) -> tuple[bytes, bytes]:
    if len(record) > RECORD_BYTES_MAX:
        raise PeerError(f"a record of {len(record)} bytes exceeds {RECORD_BYTES_MAX}")
    envelope = decode(record, ENVELOPE_LIMITS)
    match envelope:
        case [bytes(payload), bytes(signature)] if len(signature) == SIGNATURE_BYTES:
            return payload, signature
    raise PeerError("a record is not [statement, signature]")


def _unpacked(payload: bytes) -> bytes:
    """Of what is packed, at most PAYLOAD_BYTES_MAX are made."""
    if not payload.startswith(ZLIB_MARK):
        return payload
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(payload, PAYLOAD_BYTES_MAX)
    except zlib.error:
        raise PeerError("a record that is packed wrongly") from None
    if not unpacker.eof or unpacker.unused_data:
        raise PeerError("a record that is packed wrongly, or too large")
    return found


def _check_time(statement: Statement, now_ms: int) -> None:
    if statement.sequence > now_ms + CLOCK_SKEW_MS_MAX:
        ahead = (statement.sequence - now_ms) / 1000
        raise PeerError(f"a record from {ahead:.0f} s in the future: whose clock is wrong?")
    if not 0 < statement.expires_ms - statement.sequence <= LIFETIME_MS_MAX:
        raise PeerError(f"a record that would live for {statement.expires_ms - statement.sequence} ms")
    if statement.expires_ms <= now_ms:
        raise PeerError("an expired record")


def _check_body(statement: Statement) -> None:
    body = statement.body
    if len(statement.run) > NAME_BYTES_MAX or len(statement.peer.id) > NAME_BYTES_MAX:
        raise PeerError("a run or peer id that is too long")
    if len(body.addresses) > ADDRESSES_MAX or any(len(address) > ADDRESS_BYTES_MAX for address in body.addresses):
        raise PeerError("too many or too long addresses")
    if isinstance(body, Presence) and body.peer != statement.peer:
        raise PeerError("a presence of somebody else")
    if isinstance(body, RunNotice) and len(body.name) > NAME_BYTES_MAX:
        raise PeerError("a run's name is too long")
    if isinstance(body, RunNotice) and len(body.words) > WORDS_TEXT_MAX:
        raise PeerError("too many words about a run")
    if isinstance(body, Claim):
        if body.view.run != statement.run:
            raise PeerError("a view of another run")
        if body.stages != body.view.stages_of(statement.peer) or statement.peer not in body.view.members():
            raise PeerError("a claim that its own view does not grant")
