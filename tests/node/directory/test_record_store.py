"""The door of the store, and the holes of the storage that it replaces."""

from __future__ import annotations

import math

import msgpack
import pytest

from ftnode.node.directory import record_store
from ftnode.node.directory.record_store import RecordStore, key_hash, read_dictionary, read_subkey, unwrap, wrap
from ftnode.node.directory.records import key_of
from ftnode.node.home.identity import verify
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.records import Presence
from tests.node.directory.signers import NOW_MS, RUN, Signer, presence, signer

A, B = signer(1), signer(2)
KEY = key_hash(key_of(RUN, Presence))


def put(
    store: RecordStore, who: Signer, age_ms: int = 0, life_ms: int = 30_000, now_ms: int = NOW_MS, **fields: int
) -> str:
    record = who.record(presence(who, **fields), age_ms, life_ms)
    return store.put(KEY, who.peer.id, record, (NOW_MS - age_ms + life_ms) / 1000, now_ms)


def test_a_record_stands_until_it_expires() -> None:
    store = RecordStore(verify)
    assert put(store, A) == ""
    assert list(store.read(KEY, NOW_MS + 29_999)) == [A.peer.id]
    assert store.read(KEY, NOW_MS + 30_000) == {}
    assert store.all(NOW_MS + 30_000) == {}


def test_a_newer_record_replaces_an_older_one() -> None:
    store = RecordStore(verify)
    assert put(store, A, age_ms=5000) == ""
    assert put(store, A, capacity=7) == ""
    assert [item.sequence for item in store.read(KEY, NOW_MS).values()] == [NOW_MS]


def test_an_older_record_changes_nothing() -> None:
    store = RecordStore(verify)
    assert put(store, A) == ""
    assert "newer" in put(store, A, age_ms=5000, life_ms=8000, capacity=3)
    assert "newer" in put(store, A, age_ms=5000, life_ms=60_000, capacity=3)
    put(store, B, now_ms=NOW_MS + 4000)  # any store sweeps out what has expired: the rejected one's time is up
    assert store.read(KEY, NOW_MS + 4000)[A.peer.id].sequence == NOW_MS


def test_the_same_record_again_costs_no_signature() -> None:
    checks = 0

    def counting(peer: str, data: bytes, signature: bytes) -> bool:
        nonlocal checks
        checks += 1
        return verify(peer, data, signature)

    store = RecordStore(counting)
    assert [put(store, A), put(store, A)] == ["", ""]
    assert checks == 1


@pytest.mark.parametrize("expiration", [math.inf, -math.inf, math.nan, NOW_MS / 1000 + 31, 1e300])
def test_an_expiry_that_was_not_signed_is_refused(expiration: float) -> None:
    store = RecordStore(verify)
    assert store.put(KEY, A.peer.id, A.record(presence(A)), expiration, NOW_MS) != ""
    assert store.all(NOW_MS) == {}


@pytest.mark.parametrize(
    ("key", "subkey"), [(key_hash("else"), A.peer.id), (KEY, B.peer.id), (KEY, ""), (b"", A.peer.id)]
)
def test_a_record_in_a_wrong_place_is_refused(key: bytes, subkey: str) -> None:
    store = RecordStore(verify)
    assert store.put(key, subkey, A.record(presence(A)), NOW_MS / 1000 + 30, NOW_MS) != ""
    assert store.all(NOW_MS) == {}


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [
        ("RECORDS_PER_KEY_MAX", 1, "too many records"),
        ("BYTES_PER_KEY_MAX", 500, "bytes under"),
        ("SHELF_BYTES_MAX", 500, "full"),
    ],
)
def test_the_shelf_is_bounded_and_takes_again_when_room_is_made(
    limit: str, value: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_store, limit, value)
    store = RecordStore(verify)
    assert put(store, A, life_ms=1000) == ""
    assert reason in put(store, B)
    assert put(store, A, life_ms=1000, capacity=2, age_ms=-1) == "", "an update needs no more room"
    assert put(store, B, now_ms=NOW_MS + 2000) == ""


def nested(levels: int) -> bytes:
    """hivemind's encoding of a tuple in a tuple in a tuple ..."""
    data = b"\xc0"
    for _ in range(levels):
        data = msgpack.packb(msgpack.ExtType(0x40, b"\x91" + data))
    return data


def dictionary(items: object) -> bytes:
    return msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([8, 1.0, items])))


@pytest.mark.parametrize(
    "data",
    [
        nested(1), nested(200), nested(5000), msgpack.packb(msgpack.ExtType(0x50, nested(200))), dictionary(3),
        dictionary([[nested(3), b"", 1.0]]), dictionary([["a", b"", 1]]), dictionary([["a", "text", 1.0]]),
        dictionary([["a", b""]]), b"", b"\xc0", b"\x91" * 5000, msgpack.packb([8, 1.0, []]), bytes(3 << 20),
    ],
)  # fmt: skip
def test_no_dictionary_is_a_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        read_dictionary(data)


def test_a_dictionary_is_read() -> None:
    assert read_dictionary(dictionary([["a", b"1", 2.5], ["b", b"2", 3.5]])) == [("a", b"1", 2.5), ("b", b"2", 3.5)]


@pytest.mark.parametrize("tag", [b"", b"\xc0", nested(200), msgpack.packb(b"a"), msgpack.packb("a" * 200)])
def test_no_subkey_is_a_peer_error(tag: bytes) -> None:
    with pytest.raises(PeerError):
        read_subkey(tag)


def test_wrapping() -> None:
    record = A.record(presence(A))
    assert unwrap(wrap(record)) == record
    for odd in (b"", b"\xc0", nested(200), "text", bytes(17000), wrap(record) + b"\xc0"):
        with pytest.raises(PeerError):
            unwrap(odd)
