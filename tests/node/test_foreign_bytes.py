"""Whatever bytes a peer sends on any protocol, its reader gives a value or a PeerError, within bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
import trio

from ftnode.node.data import shard_wire
from ftnode.node.directory.record_store import RecordStore, read_dictionary, read_subkey, unwrap, wrap
from ftnode.node.directory.records import Claim, RunNotice, read_record
from ftnode.node.export import wire as export_wire
from ftnode.node.home.identity import verify
from ftnode.node.links import dial_back
from ftnode.node.links.listening import address_bytes, address_text
from ftnode.node.links.p2pd_messages import read_reservation
from ftnode.node.manifests.book import ManifestBook
from ftnode.node.manifests.exchange import answer, read_manifest_reply, read_refusal, request_for
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.reduction import wire as reduction_wire
from ftnode.node.watch.history import (
    CommitRow,
    History,
    HistoryRequest,
    NoteRow,
    ValidationRow,
    decode_history,
    encode_history,
    encode_request,
    read_request,
)
from ftnode.node.watch.peer_latency import read_answer
from ftnode.node.watch.status import (
    REQUEST_LIMITS,
    CommitPoint,
    Member,
    Speaker,
    StageRow,
    SwarmStatus,
    decode_status,
    encode_status,
    serve_requests,
)
from ftnode.node.watch.time_use import TimeUse, told
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.manifest.parse import render
from ftnode.protocol.wire.decoder import decode
from ftnode.protocol.wire.frames import Refusal, read_greeting, read_message, read_transfer
from ftnode.protocol.wire.length_prefix import framed
from ftnode.protocol.words.codec import tagged
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Attempt
from tests.node.directory.signers import NOW_MS, presence, signer, view
from tests.node.hostile_bytes import BOMBS, hostile
from tests.protocol.wire.test_frames import GREETINGS, MESSAGES, TRANSFERS

SAMPLES: Final = 3000
STREAM_SAMPLES: Final = 300
MEMORY_MAX: Final = 64 << 20
"""For one decoding. The bombs could claim terabytes."""
A, B = signer(1), signer(2)
PEER = A.peer.id
MEMBER = Member("run", "tiny", PEER, ("/ip4/127.0.0.1/tcp/1",))
STATUS = SwarmStatus(
    Speaker(PEER, "0.1.0", "cpu", "volunteer"), run="run", name="tiny", step=7, loss=2.5,
    stages=(StageRow(0, PEER, "busy", 0, 7, 3, 1, 0.5),), commits=(CommitPoint(6, 2.6, 0.5),), members=(MEMBER,),
)  # fmt: skip
HISTORY = History(
    "run", "lineage", "1", (CommitRow(1, 2.0, 64, 0.5, False), CommitRow(2, 2.0, 64, 0.5, True)),
    (ValidationRow(1, 2.0),), (NoteRow(1, 0.5, 1, "view", "text"),), False, (MEMBER,),
)  # fmt: skip
RECORDS = tuple(A.record(body) for body in (presence(A), RunNotice("tiny", ()), Claim((0,), (), view(A, B))))
REDUCING = (
    reduction_wire.ReduceRequest("run", 1, 0, 1, Attempt(1, 1), 1, b"g" * 16, 0, 0),
    reduction_wire.ReduceReply(4),
    Refusal("later", True),
)
WHO = {"version": "1", "role": "r", "device": "d", "clock": 1.0}
LENDING = (shard_wire.ShardRequest("run", "index.json"), shard_wire.ShardReply(64), Refusal("busy", True))
EXPORTING = (
    export_wire.WhoHolds("run"), export_wire.ExportRequest("run", 0, 1), export_wire.SendIt(), export_wire.Written(),
    export_wire.Holders("run", 3, 0.5, (export_wire.Place(0, 1, PEER, ("/ip4/127.0.0.1/tcp/1",)),)),
    export_wire.ExportOffer(3, "abc", 64, "0" * 32), Refusal("no", False),
)  # fmt: skip


class OneFrame:
    """A stream that brings these bytes and ends; what is answered is thrown away."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    async def receive_some(self, size: int) -> bytes:
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    async def send_all(self, data: bytes) -> None:
        pass


Read = Callable[[bytes], Any]


def over_a_stream(hear: Callable[[Any], Any]) -> Read:
    """A reader of streams as one of bytes; nothing in it waits, so that one step of the coroutine is all of it."""

    def read(data: bytes) -> Any:
        async def main() -> Any:
            return await hear(OneFrame(framed(data)))

        return trio.run(main)

    return read


def packed(*said: object) -> tuple[bytes, ...]:
    return tuple(msgpack.packb(tagged(one)) for one in said)


def no_address(data: bytes) -> None:
    """The addresses in a question whether we get through; no host is allowed, so that nothing is dialled."""
    asked = decode(data, dial_back.FRAME_LIMITS)
    if isinstance(asked, list):
        dial_back.candidates(asked[: dial_back.ADDRESSES_MAX], {"127.0.0.1"})


def watched(data: bytes) -> None:
    """Never raises at all; the history's reader takes what a request says."""
    stream: Any = OneFrame(framed(data))
    trio.run(serve_requests, stream, lambda asked: msgpack.packb(list(read_request(asked))), 0.0)


def stored(data: bytes) -> None:
    """Never raises at all."""
    assert RecordStore(verify).put(b"k" * 20, PEER, data, 1e9, NOW_MS)


def a_dictionary(*records: bytes) -> bytes:
    items = [[PEER, wrap(record), 1e9] for record in records]
    return bytes(msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([8, 1e9, items]))))


SLOWER: Final = ("knock", "watcher", "reduction", "shards", "export, asked", "export, answered")
"""Each of their samples has a run of trio."""
ASKED: Final = (msgpack.packb(["/ip4/127.0.0.1/tcp/1", "/dns4/a/tcp/2", "/ip4/0.0.0.0/tcp/3"]), msgpack.packb("/ip4"))
READERS: Final[dict[str, tuple[Read, tuple[bytes, ...]]]] = {
    "step": (lambda data: read_message(data, 0, BoundaryBytes(0, 0)), packed(*MESSAGES)),
    "greeting": (lambda data: read_greeting(data, 0), packed(*GREETINGS)),
    "state": (lambda data: read_transfer(data, 0, 64), packed(*TRANSFERS)),
    "reduction": (over_a_stream(reduction_wire.hear), packed(*REDUCING)),
    "shards": (over_a_stream(shard_wire.hear), packed(*LENDING)),
    "export, asked": (over_a_stream(export_wire.hear_asked), packed(*EXPORTING)),
    "export, answered": (over_a_stream(export_wire.hear_answer), packed(*EXPORTING)),
    "knock": (no_address, ASKED),
    "who": (read_answer, (msgpack.packb(WHO), msgpack.packb(WHO | told(TimeUse(0.1, 0.2, 0.7, 0.1, 1e6))))),
    "status": (decode_status, (encode_status(STATUS),)),
    "history": (decode_history, (encode_history(HISTORY),)),
    "history, asked": (lambda data: decode(data, REQUEST_LIMITS), (encode_request(HistoryRequest(1, 2, 3)),)),
    "watcher": (watched, (encode_request(HistoryRequest(1, 2, 3)), msgpack.packb({"format": 1}))),
    "manifest": (read_manifest_reply, (msgpack.packb({"format": 1, "manifest": b"text"}),)),
    "refusal": (read_refusal, (msgpack.packb({"format": 1, "refusal": "older"}),)),
    "record": (lambda data: read_record(data, NOW_MS, verify), RECORDS),
    "stored record": (stored, RECORDS),
    "wrapped record": (unwrap, tuple(wrap(record) for record in RECORDS)),
    "subkey": (read_subkey, (msgpack.packb(PEER),)),
    "dictionary": (read_dictionary, (a_dictionary(*RECORDS),)),
}


@pytest.mark.parametrize("name", READERS)
def test_nothing_but_a_peer_error_comes_of_hostile_bytes(name: str) -> None:
    read, valid = READERS[name]
    samples = STREAM_SAMPLES if name in SLOWER else SAMPLES
    refused = 0
    for data in hostile(valid, random.Random(name), samples):
        try:
            read(data)
        except PeerError as error:
            refused += 1
            assert len(str(error)) < 1000, "an error text as long as a stranger likes"
    assert refused or name in ("watcher", "stored record")
    for data in valid:
        try:
            read(data)
        except PeerError as error:  # of the other direction
            assert name in ("export, asked", "export, answered"), error


@pytest.mark.parametrize("name", READERS)
def test_no_bomb_takes_more_memory_than_its_bound(name: str) -> None:
    read, valid = READERS[name]
    tracemalloc.start()
    try:
        for data in (*valid, *BOMBS):
            try:
                read(data)
            except PeerError:
                continue
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()


def test_requests_about_manifests_are_answered_or_a_peer_error(tmp_path: Path) -> None:
    manifest, text = PRESETS["tiny"], render(PRESETS["tiny"])
    book = ManifestBook(manifest, text, tmp_path, lambda newer: pytest.fail("a manifest that nobody signed"))
    valid = (request_for(manifest.run_id), request_for(manifest.run_id, text))
    deep = [request_for(manifest.run_id, shown) for shown in ("a = " + "[" * 100_000, "a = " + "{b = " * 5000)]
    for data in (*deep, *hostile(valid, random.Random(7), 400)):
        try:
            assert answer(book, data)
        except PeerError as error:
            assert len(str(error)) < 1000


def test_addresses_and_reservations_of_others_are_texts_or_value_errors() -> None:
    chance = random.Random(5)
    valid = [
        address_bytes("/ip4/127.0.0.1/tcp/1"),
        address_bytes("/dns4/a.b/udp/5/quic"),
        address_bytes(f"/p2p/{PEER}"),
    ]
    words = (
        "/",
        "ip4",
        "ip6",
        "dns4",
        "tcp",
        "p2p",
        "onion3",
        "unix",
        "1.2.3.4",
        "::1",
        "65536",
        "x" * 300,
        "é",
        "\0",
        "%",
    )
    for data in hostile(valid, chance, 4000):
        for read in (address_text, read_reservation):
            try:
                read(data)
            except ValueError:
                continue
    for _ in range(4000):
        try:
            address_bytes("/".join(chance.choice(words) for _ in range(chance.randrange(8))))
        except ValueError:
            continue
