"""What this peer stores for the others: a bounded store of signed records, and the one door into it.

hivemind's own storage lets a store that it rejects evict the record it was rejected in favour of, takes infinite
expiries, and unpacks nested extension types recursively until the C stack is gone. So everything that comes from the
wire is read here, by a decoder that knows one level and a storage that knows signatures. Pure: no hivemind, no clock.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import isfinite
from typing import cast

import msgpack

from ftnode.node.directory.records import RECORD_BYTES_MAX, Statement, key_of, read_record
from ftnode.node.home.identity import Verify
from ftnode.protocol.wire.decoder import Limits, decode, decode_extension
from ftnode.protocol.words.errors import PeerError

DICTIONARY_EXTENSION = 0x50
"""hivemind's extension type of a dictionary value: [maxsize, latest expiration, [[subkey, value, expiration]...]]."""
KEY_BYTES = 20
RECORDS_PER_KEY_MAX = 512
BYTES_PER_KEY_MAX = 1 << 20
SHELF_BYTES_MAX = 2 << 20
"""hivemind hands all of its records to a new neighbour in one message, and p2pd's messages end at 4 MiB."""
WRAPPED_BYTES_MAX = RECORD_BYTES_MAX + 5
"""hivemind wraps each value in msgpack once more: 3 or 5 bytes in front."""
WRAPPED_LIMITS = Limits(size=WRAPPED_BYTES_MAX, depth=1, text=RECORD_BYTES_MAX)
SUBKEY_LIMITS = Limits(size=128, depth=1)
DICTIONARY_LIMITS = Limits(size=SHELF_BYTES_MAX, depth=4, text=SHELF_BYTES_MAX)
"""A value that is too long for a record is refused by itself, not with its neighbours."""

ENTRY_BYTES = 100
"""What a dictionary adds to a record: the signer's name, an expiration."""


def key_hash(key: str) -> bytes:
    """The 20 bytes under which hivemind looks a text key up: SHA-1 of its msgpack."""
    return hashlib.sha1(cast(bytes, msgpack.packb(key)), usedforsecurity=False).digest()


def place_of(peer_id: bytes) -> bytes:
    """A peer's place in the DHT. A function of its identity, so that nobody can choose to stand around a key."""
    return hashlib.sha1(peer_id, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record, as it came."""

    record: bytes
    sequence: int
    expires_ms: int


class RecordStore:
    """Signed records by key hash and signer. A signer's newer record replaces the older, never the other way round."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._records: dict[bytes, dict[str, StoredRecord]] = {}
        self._bytes = 0

    def put(self, key: bytes, subkey: str, record: bytes, expiration: float, now_ms: int) -> str:
        """Store a record. Returns why it was refused, or "" when it stands here now. Never raises for bad input."""
        known = self._records.get(key, {}).get(subkey)
        if known is not None and known.record == record:
            return ""  # a replica that another peer brings again, the commonest case, costs no signature check
        try:
            statement = check(key, subkey, record, expiration, now_ms, self._verify)
        except PeerError as error:
            return str(error)
        self.expire(now_ms)
        return self._place(key, subkey, StoredRecord(record, statement.sequence, statement.expires_ms))

    def _place(self, key: bytes, subkey: str, new: StoredRecord) -> str:
        group = self._records.get(key, {})
        old = group.get(subkey)
        if old is not None and old.sequence >= new.sequence:
            return "a newer record of the same peer stands here"
        added = len(new.record) - (0 if old is None else len(old.record))
        if old is None and len(group) >= RECORDS_PER_KEY_MAX:
            return "too many records under this key"
        if sum(len(item.record) for item in group.values()) + added > BYTES_PER_KEY_MAX:
            return "too many bytes under this key"
        if self._bytes + added > SHELF_BYTES_MAX:
            return "the store is full"
        self._records.setdefault(key, {})[subkey] = new
        self._bytes += added
        return ""

    def read(self, key: bytes, now_ms: int) -> dict[str, StoredRecord]:
        """Live records of a key by signer."""
        return {subkey: item for subkey, item in self._records.get(key, {}).items() if item.expires_ms > now_ms}

    def size(self, key: bytes) -> int:
        """Bytes of records that an answer about this key would have, about."""
        return sum(len(item.record) + ENTRY_BYTES for item in self._records.get(key, {}).values())

    def all(self, now_ms: int) -> dict[bytes, dict[str, StoredRecord]]:
        """Live records by key and signer."""
        self.expire(now_ms)
        return dict(self._records)

    def expire(self, now_ms: int) -> None:
        """Forget what is past its time."""
        for key in list(self._records):
            live = self.read(key, now_ms)
            self._bytes -= sum(len(item.record) for item in self._records[key].values())
            self._bytes += sum(len(item.record) for item in live.values())
            if live:
                self._records[key] = live
            else:
                del self._records[key]


def check(key: bytes, subkey: str, record: bytes, expiration: float, now_ms: int, verify: Verify) -> Statement:
    """The statement of a record that may stand at `key`, `subkey` until `expiration` (Unix s). Raises PeerError.

    Validators of the DHT see hashed keys only; the content names its key, so the hash can be compared.
    """
    if not isfinite(expiration):
        raise PeerError("a record that would never expire")
    statement = read_record(record, now_ms, verify)
    if statement.peer.id != subkey:
        raise PeerError("a record under the name of another peer")
    if key_hash(key_of(statement.run, type(statement.body))) != key:
        raise PeerError("a record under the key of something else")
    if round(expiration * 1000) != statement.expires_ms:
        raise PeerError("a record with an expiry that was not signed")
    return statement


def wrap(record: bytes) -> bytes:
    """A record as hivemind stores a value."""
    return cast(bytes, msgpack.packb(record, use_bin_type=True))


def unwrap(value: object) -> bytes:
    """The record in a stored value. Raises PeerError."""
    if not isinstance(value, bytes) or len(value) > WRAPPED_BYTES_MAX:
        raise PeerError("a value that is too big for a record")
    record = decode(value, WRAPPED_LIMITS)
    if not isinstance(record, bytes):
        raise PeerError("a value that is no record")
    return record


def read_subkey(tag: bytes) -> str:
    """The signer's name that a packed subkey carries. Raises PeerError."""
    subkey = decode(tag, SUBKEY_LIMITS)
    if not isinstance(subkey, str):
        raise PeerError("a subkey that is no peer id")
    return subkey


def read_dictionary(data: bytes) -> list[tuple[str, bytes, float]]:
    """(subkey, value, expiration) of each item in hivemind's encoding of a dictionary. Raises PeerError.

    Knows exactly one level of extension, so nesting it deeper is an error and not a recursion.
    """
    inner = decode(decode_extension(data, DICTIONARY_EXTENSION, SHELF_BYTES_MAX), DICTIONARY_LIMITS)
    if not isinstance(inner, list) or len(inner) != 3 or not isinstance(inner[2], list):
        raise PeerError("not a dictionary of records")
    items = []
    for item in inner[2][:RECORDS_PER_KEY_MAX]:
        match item:
            case [str(subkey), bytes(value), float(expiration)]:
                items.append((subkey, value, expiration))
            case _:
                raise PeerError("a dictionary with an item that is no record")
    return items
