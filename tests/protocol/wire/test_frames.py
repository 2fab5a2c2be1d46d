"""Frames survive the trip, and bytes from strangers end in a PeerError or a message, never in anything else."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random

import msgpack
import pytest

from ftnode.models import encoded_size
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.wire.decoder import DEPTH_MAX
from ftnode.protocol.wire.frames import (
    ADDRESSES_MAX,
    ENCODINGS,
    HEADER_BYTES_MAX,
    HISTORY_COMMITS_MAX,
    PREFIX_BYTES,
    Hello,
    Refusal,
    StateChunk,
    StateHeader,
    StateHistory,
    StateRequest,
    Welcome,
    check_payload,
    clean_reason,
    encode_frame,
    history_pieces,
    read_greeting,
    read_message,
    read_prefix,
    read_transfer,
)
from ftnode.protocol.words.codec import tagged
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.messages import Ballot, Boundary, Commit, Contact, Offer, Prepare, Stored
from ftnode.protocol.words.types import Attempt, Direction, Peer, Version

PEER = Peer("12D3KooWGZiCXxbS1SrT9TXT1fDM1Y5pFhKX3ktdnZXVNY5FQTQz", 7)
VERSION = Version(3, "abc", Attempt(1, 2))
BOUNDARY = Boundary("l", 1, 4, Attempt(1, 3), 5, 2, Direction.BACKWARD, (PEER, PEER))
MESSAGES = (
    BOUNDARY,
    Stored("l", 4, Attempt(1, 3), 5, 2, Direction.BACKWARD),
    Offer("l", 1, (2, 3), VERSION, (Contact(PEER, ("/ip4/127.0.0.1/tcp/1",)),), False),
    Prepare("l", 2, Ballot(3, PEER)),
)
SIZES = BoundaryBytes(64, 64)
GREETINGS = (Hello("run", 1, ("/ip4/1.2.3.4/tcp/5",), "control"), Welcome(2, ()), Refusal("no", False))
REQUEST = StateRequest("run", 2, 3, "abc", "weights", "int8", True, False, 17)
HEADER = StateHeader(VERSION, 1.5, 4, 400, "d", 3, 1.1, "raw")
COMMIT = Commit(7, 5.5, 64, 0.25, False, (1.0, 2.0, 3.0))
TRANSFERS = (
    REQUEST,
    HEADER,
    StateHistory((COMMIT, replace(COMMIT, step=8))),
    Refusal("later", True),
)


def parts(frame: bytes) -> tuple[bytes, int]:
    size, payload = read_prefix(frame[:PREFIX_BYTES])
    assert len(frame) == PREFIX_BYTES + size
    return frame[PREFIX_BYTES:], payload


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives(message: object) -> None:
    size = 64 if isinstance(message, Boundary) else 0
    assert read_message(*parts(encode_frame(message, size)), SIZES) == message  # type: ignore[arg-type]


@pytest.mark.parametrize("greeting", GREETINGS, ids=lambda message: type(message).__name__)
def test_a_greeting_survives(greeting: Hello | Welcome | Refusal) -> None:
    assert read_greeting(*parts(encode_frame(greeting))) == greeting


@pytest.mark.parametrize("transfer", TRANSFERS, ids=lambda message: type(message).__name__)
def test_a_transfer_survives(transfer: StateRequest | StateHeader | StateHistory | Refusal) -> None:
    assert read_transfer(*parts(encode_frame(transfer)), 100) == transfer


@pytest.mark.parametrize(("size", "fits"), [(0, False), (63, False), (64, True), (65, False), (2**32 - 1, False)])
def test_a_boundary_has_exactly_its_bytes(size: int, fits: bool) -> None:
    header, payload = parts(encode_frame(BOUNDARY, size))
    if fits:
        assert read_message(header, payload, SIZES) == BOUNDARY
    else:
        with pytest.raises(PeerError, match="bytes behind it"):
            read_message(header, payload, SIZES)


def test_each_direction_has_its_own_size() -> None:
    sizes = BoundaryBytes(forward=32, backward=64)
    ahead = replace(BOUNDARY, direction=Direction.FORWARD)
    assert read_message(*parts(encode_frame(ahead, 32)), sizes) == ahead
    assert read_message(*parts(encode_frame(BOUNDARY, 64)), sizes) == BOUNDARY
    for message, size in ((ahead, 64), (BOUNDARY, 32)):
        with pytest.raises(PeerError, match=f"with {size} bytes behind it instead of {96 - size}"):
            read_message(*parts(encode_frame(message, size)), sizes)


SCALES = {
    "zero": (0x0000, True),
    "denormal": (0x0001, True),
    "one": (0x3F80, True),
    "largest": (0x70FF, True),
    "too large": (0x7100, False),
    "infinite": (0x7F80, False),
    "no number": (0x7FC0, False),
    "negative": (0xBF80, False),
    "negative zero": (0x8000, False),
    "negative and no number": (0xFFFF, False),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_sound_or_an_offence(name: str) -> None:
    """Whatever follows them: levels mean finite numbers with any sound scale."""
    bits, sound = SCALES[name]
    sizes = BoundaryBytes(forward=64, backward=64, forward_scales=0, backward_scales=6)
    bad = bits.to_bytes(2, "little")
    for place in range(3):
        scales = bytearray(bytes((0x80, 0x3F)) * 3)
        scales[2 * place : 2 * place + 2] = bad
        payload = memoryview(bytes(scales) + b"\xff" * 58)
        check_payload(replace(BOUNDARY, direction=Direction.FORWARD), payload, sizes)  # it has none
        if sound:
            check_payload(BOUNDARY, payload, sizes)
        else:
            with pytest.raises(PeerError, match="a scale that is negative, too large or no number"):
                check_payload(BOUNDARY, payload, sizes)


@pytest.mark.parametrize(
    ("vocabulary", "token", "sound"),
    [
        (300, 299, True),
        (300, 300, False),
        (300, 0xFFFF, False),
        (1 << 16, 0xFFFF, True),
        ((1 << 16) + 1, 1 << 16, True),
        ((1 << 16) + 1, (1 << 16) + 1, False),
        ((1 << 16) + 1, 0xFFFFFFFF, False),
    ],
)
def test_tokens_are_of_the_vocabulary_or_an_offence(vocabulary: int, token: int, sound: bool) -> None:
    """A gradient has none."""
    sizes = BoundaryBytes.encoded(("int8", "int8"), 3, 16, vocabulary)
    forward = replace(BOUNDARY, direction=Direction.FORWARD)
    for place in range(3):
        tokens = [0, 0, 0]
        tokens[place] = token
        each = sizes.forward_tokens // 3
        behind = b"".join(one.to_bytes(each, "little") for one in tokens)
        payload = memoryview(bytes(sizes.forward - len(behind)) + behind)
        assert len(payload) == sizes.forward == sizes.backward + 3 * each
        check_payload(replace(BOUNDARY, direction=Direction.BACKWARD), memoryview(b"\x00" * sizes.backward), sizes)
        if sound:
            check_payload(forward, payload, sizes)
        else:
            with pytest.raises(PeerError, match="a token that is none of the vocabulary"):
                check_payload(forward, payload, sizes)


def test_nothing_else_has_bytes_behind_it() -> None:
    with pytest.raises(PeerError):
        read_message(*parts(encode_frame(MESSAGES[1], 64)), SIZES)
    with pytest.raises(PeerError):
        read_greeting(*parts(encode_frame(GREETINGS[0], 1)))
    with pytest.raises(PeerError):
        read_transfer(*parts(encode_frame(TRANSFERS[0], 1)), 100)


@pytest.mark.parametrize(("size", "fits"), [(0, False), (1, True), (100, True), (101, False)])
def test_a_chunk_fits_its_slot(size: int, fits: bool) -> None:
    frame = parts(encode_frame(StateChunk(0, b"h" * 16), size))
    if fits:
        assert read_transfer(*frame, 100) == StateChunk(0, b"h" * 16)
    else:
        with pytest.raises(PeerError):
            read_transfer(*frame, 100)


@pytest.mark.parametrize(
    "transfer",
    [
        replace(REQUEST, parts="everything"),
        replace(REQUEST, parts="all"),  # moments are kept to the bit
        replace(REQUEST, freeze=False),
        replace(REQUEST, encoding="zip"),
        replace(REQUEST, copy=True),
        replace(REQUEST, since=-2),
        replace(HEADER, encoding="zip"),
        replace(HEADER, chunks=-1),
        replace(HEADER, size=1 << 60),
        replace(HEADER, step_count=-1),
        replace(HEADER, rate_factor=0.0),
        replace(HEADER, rate_factor=1e9),
        replace(HEADER, norm_squared=-1.0),
        replace(HEADER, digest="d" * 100),
        replace(HEADER, version=replace(VERSION, step=-1)),
        StateHistory((COMMIT, COMMIT)),
        StateHistory((replace(COMMIT, step=0),)),
        StateHistory(tuple(replace(COMMIT, step=step) for step in range(1, HISTORY_COMMITS_MAX + 2))),
    ],
)
def test_a_transfer_of_what_cannot_be_is_refused(transfer: StateRequest | StateHeader | StateHistory) -> None:
    with pytest.raises(PeerError):
        read_transfer(*parts(encode_frame(transfer)), 100)


def test_a_long_history_comes_in_frames_that_fit_and_an_empty_one() -> None:
    for stages, commits in ((3, 2500), (256, 10_000)):
        past = [replace(COMMIT, step=step, norms=(1e300,) * stages) for step in range(1, commits + 1)]
        frames = [encode_frame(piece) for piece in history_pieces(past)]
        told = [read_transfer(*parts(frame), 100) for frame in frames]
        assert [commit for piece in told if isinstance(piece, StateHistory) for commit in piece.commits] == past
        assert told[-1] == StateHistory(()) and max(map(len, frames)) < HEADER_BYTES_MAX / 2
    assert list(history_pieces(())) == [StateHistory(())]


def test_encodings_have_the_same_names_on_the_wire_and_in_compute() -> None:
    assert ENCODINGS == encoded_size.ENCODINGS


@pytest.mark.parametrize("size", [0, HEADER_BYTES_MAX + 1, 2**32 - 1])
def test_header_lengths_are_bounded(size: int) -> None:
    with pytest.raises(PeerError):
        read_prefix(struct.pack(">II", size, 0))


@pytest.mark.parametrize(
    "hello",
    [
        Hello("run", 1, ("/a",) * (ADDRESSES_MAX + 1), "control"),
        Hello("run", 1, ("/" + "a" * 600,), "control"),
        Hello("run", 1, (), "express"),
    ],
)
def test_a_hello_is_checked(hello: Hello) -> None:
    with pytest.raises(PeerError):
        read_greeting(*parts(encode_frame(hello)))


@pytest.mark.parametrize(
    "header",
    [
        b"\x91" * 1000 + b"\x90",  # 1,000 levels: msgpack takes them, repr of the result would not
        b"\x91" * 5000 + b"\x90",
        b"\x91" * DEPTH_MAX + b"\x90",
        b"\xdd\xff\xff\xff\xff",  # a list of 4 billion items, of which none follow
        b"\x81\x01\x01",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xa2\xc3\x28",
        b"\x90\x90",
        b"",
    ],
)
def test_hostile_msgpack_is_refused(header: bytes) -> None:
    for read in (lambda: read_message(header, 0, SIZES), lambda: read_greeting(header, 0)):
        with pytest.raises(PeerError):
            read()


def test_random_bytes_raise_nothing_but_peer_errors() -> None:
    chance = Random(1)
    frames = [msgpack.packb(tagged(item)) for item in (*MESSAGES, *GREETINGS, *TRANSFERS)]
    refused = 0
    for _ in range(20_000):
        data = bytearray(chance.choice(frames) if chance.random() < 0.8 else chance.randbytes(chance.randrange(200)))
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        data = data[: chance.randrange(len(data) + 1)] if chance.random() < 0.2 else data
        payload = chance.choice((0, 64, 2**32 - 1))
        for read, *limit in ((read_message, SIZES), (read_greeting,), (read_transfer, 64)):
            try:
                read(data, payload, *limit)  # type: ignore[operator]
            except PeerError:
                refused += 1
    assert 20_000 < refused < 60_000  # both outcomes occur


def test_random_prefixes_raise_nothing_but_peer_errors() -> None:
    chance = Random(2)
    for _ in range(2_000):
        try:
            size, _ = read_prefix(chance.randbytes(PREFIX_BYTES))
        except PeerError:
            continue
        assert 0 < size <= HEADER_BYTES_MAX


def test_a_strangers_reason_is_one_short_line() -> None:
    assert clean_reason("no\n\x1b[31mway" + "!" * 5000).startswith("no  [31mway!!!")
    assert len(clean_reason("x" * 5000)) == 1000
