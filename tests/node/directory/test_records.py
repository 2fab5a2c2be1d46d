"""Signed records: the true ones are read back, every lie is refused."""

from __future__ import annotations

import random
import string
import zlib
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from ftnode.node.directory.records import (
    CLOCK_SKEW_MS_MAX,
    RECORD_BYTES_MAX,
    RUNS_KEY,
    Claim,
    RunNotice,
    Statement,
    claimants,
    key_of,
    next_sequence,
    read_record,
    sign_record,
)
from ftnode.node.home.identity import verify
from ftnode.protocol.words.codec import encode_canonical
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View
from tests.node.directory.signers import NOW_MS, RUN, Signer, presence, signer, view

A, B = signer(1), signer(2)
BODIES = [
    presence(A),
    Claim((0,), ("/ip4/127.0.0.1/tcp/1",), view(A, B)),
    RunNotice("tiny", ("/ip4/127.0.0.1/tcp/1",)),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_true_record_is_read_back(body: Presence | Claim | RunNotice) -> None:
    found = read_record(A.record(body), NOW_MS, verify)
    assert (found.body, found.peer, found.run) == (body, A.peer, RUN)


def changed(body: Presence | Claim | RunNotice = BODIES[0], **fields: Any) -> bytes:
    statement = Statement(RUN, A.peer, NOW_MS, NOW_MS + 30_000, body)
    return sign_record(replace(statement, **fields), A.sign)


LIES = {
    "expired": lambda: A.record(BODIES[0], age_ms=40_000),
    "lives too long": lambda: A.record(BODIES[0], life_ms=90_001),
    "ends before it begins": lambda: A.record(BODIES[0], life_ms=-1),
    "from the future": lambda: A.record(BODIES[0], age_ms=-CLOCK_SKEW_MS_MAX - 1),
    "signed by another": lambda: sign_record(Statement(RUN, A.peer, NOW_MS, NOW_MS + 9, BODIES[0]), B.sign),
    "no PeerId": lambda: changed(peer=A.peer._replace(id="x"), body=RunNotice("tiny", ())),
    "presence of another": lambda: changed(presence(B)),
    "presence of another life": lambda: changed(replace(presence(A), peer=A.peer._replace(nonce=99))),
    "claim of a stage that it does not hold": lambda: changed(Claim((1,), (), view(A, B))),
    "claim of too few stages": lambda: changed(Claim((), (), view(A, B))),
    "claim by an outsider": lambda: changed(Claim((), (), view(B))),
    "view of another run": lambda: changed(Claim((0,), (), view(A, run="other"))),
    "too many addresses": lambda: changed(presence(A, ("/ip4/127.0.0.1/tcp/1",) * 17)),
    "too long an address": lambda: changed(presence(A, ("/dns/" + "a" * 300,))),
    "too long a name": lambda: changed(RunNotice("x" * 65, ())),
    "too long a run": lambda: changed(run="r" * 65),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused(lie: str) -> None:
    with pytest.raises(PeerError):
        read_record(LIES[lie](), NOW_MS, verify)


def test_every_changed_byte_is_noticed() -> None:
    record = A.record(BODIES[0])
    for at in range(len(record)):
        spoiled = bytearray(record)
        spoiled[at] ^= 0x01
        with pytest.raises(PeerError):
            read_record(bytes(spoiled), NOW_MS, verify)


def test_another_encoding_of_the_same_is_refused() -> None:
    statement = Statement(RUN, A.peer, NOW_MS, NOW_MS + 30_000, BODIES[2])
    canonical = encode_canonical(statement)
    loose = canonical.replace(b"\xa4tiny", b"\xd9\x04tiny")
    assert loose != canonical
    with pytest.raises(PeerError, match="canonical"):
        read_record(msgpack.packb([loose, A.sign(loose)]), NOW_MS, verify)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc0", b"\x92", b"\x91" * 900 + b"\xc0", b"\x91" * 9000 + b"\xc0", b"\xc7\x01\x40\xc0"],
    ids=["empty", "nil", "cut", "deep", "deeper", "extension"],
)
@pytest.mark.parametrize("inside", [False, True])
def test_odd_bytes_are_a_peer_error(data: bytes, inside: bool) -> None:
    with pytest.raises(PeerError):
        read_record(msgpack.packb([data, A.sign(data)]) if inside else data, NOW_MS, verify)


def test_random_bytes_are_a_peer_error() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        with pytest.raises(PeerError):
            read_record(chance.randbytes(chance.randrange(200)), NOW_MS, verify)


def crowd(count: int) -> tuple[Signer, View]:
    """One of so many members, which share eight stages, with names and lives of the usual length."""
    chance, who = random.Random(count), signer(1)
    names = ["".join(chance.choices(string.ascii_letters + string.digits, k=44)) for _ in range(1, count)]
    peers = (who.peer, *(Peer(f"12D3KooW{name}", chance.getrandbits(63)) for name in names))
    holders = tuple(peers[stage::8] for stage in range(8))
    return who, View(RUN, Lineage("l" * 32, 0, 8), 5, "d" * 64, peers[0], holders, peers, (1,) * 8, "test")


@pytest.mark.parametrize("bug", [False, True])
@pytest.mark.parametrize("count", [50, 200, 300])
def test_the_view_of_a_large_swarm_fits_into_a_claim(count: int, bug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: it is not packed."""
    if bug:
        monkeypatch.setattr(zlib, "compress", lambda data, level: data)
    who, found = crowd(count)
    body = Claim(found.stages_of(who.peer), ("/ip4/192.0.2.1/tcp/31337",) * 4, found)
    if bug and count > 50:
        with pytest.raises(ValueError, match="exceeds"):
            who.record(body)
    else:
        assert read_record(who.record(body), NOW_MS, verify).body == body


def test_what_is_too_big_is_neither_signed_nor_read() -> None:
    who, found = crowd(512)
    with pytest.raises(ValueError, match="exceeds"):
        who.record(Claim(found.stages_of(who.peer), (), found))
    with pytest.raises(PeerError, match="exceeds"):
        read_record(bytes(RECORD_BYTES_MAX + 1), NOW_MS, verify)


@pytest.mark.parametrize(
    "packed",
    [
        zlib.compress(bytes(10_000_000), 9),
        zlib.compress(b"x" * 1000)[:-1],
        zlib.compress(b"x" * 1000) + b"more",
        b"\x78nonsense",
    ],
    ids=["a bomb", "cut off", "more", "nonsense"],
)
def test_what_unpacks_to_more_or_not_at_all_is_refused(packed: bytes) -> None:
    assert len(packed) < RECORD_BYTES_MAX
    with pytest.raises(PeerError, match="packed wrongly"):
        read_record(msgpack.packb([packed, A.sign(packed)]), NOW_MS, verify)


def test_few_members_claim_and_the_leader_is_one() -> None:
    _, found = crowd(200)
    asked = claimants(replace(found, leader=found.voters[150]))
    assert len(asked) == 16 and found.voters[150] in asked and asked <= {*found.members()}
    alone = replace(found, voters=found.voters[:1])
    assert len(claimants(alone)) == 16 and len(claimants(view(A, B))) == 2


def test_keys_are_of_a_run_except_the_index_of_runs() -> None:
    assert key_of("a", Presence) != key_of("b", Presence) != key_of("b", Claim)
    assert key_of("a", RunNotice) == key_of("b", RunNotice) == RUNS_KEY


@pytest.mark.parametrize(("previous", "now", "expected"), [(0, 5, 5), (5, 5, 6), (9, 5, 10)])
def test_sequences_never_go_back(previous: int, now: int, expected: int) -> None:
    assert next_sequence(previous, now) == expected
