"""Frames: what stands on a stream, as pure functions of bytes.

    header length  4 bytes big-endian, at most HEADER_BYTES_MAX
    payload length 4 bytes big-endian
    header         msgpack of a tagged dataclass (codec.py)
    payload        raw tensor bytes

A reader takes PREFIX_BYTES, then `read_prefix`, the header, `read_header`, and only then finds room for the payload,
whose length is what the header's kind demands. Bytes from strangers raise PeerError and nothing else.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgpack

from ftnode.protocol.manifest.boundary import BoundaryBytes, sound_scales, sound_tokens
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.words.codec import from_tagged, tagged
from ftnode.protocol.words.errors import FtnodeError, PeerError
from ftnode.protocol.words.messages import MESSAGES, Boundary, Commit, Message
from ftnode.protocol.words.types import Version

STEP_PROTOCOL: Final = "/ftnode/step/14"
"""libp2p protocol id; its number is the version of everything in this package that travels."""
STATE_PROTOCOL: Final = "/ftnode/state/1"

HEADER_BYTES_MAX: Final = 1 << 20
HEADER_LIMITS: Final = Limits(size=HEADER_BYTES_MAX)
PREFIX_BYTES: Final = 8
ADDRESSES_MAX: Final = 32
"""Of one peer."""
ADDRESS_TEXT_MAX: Final = 512
REASON_TEXT_MAX: Final = 1000
CONTROL_LANE: Final = "control"
TENSOR_LANE: Final = "tensor"
PROBE_LANE: Final = "probe"
"""A stream that only wants to know whether the same life still answers."""
LANES: Final = (CONTROL_LANE, TENSOR_LANE, PROBE_LANE)

PARTS: Final = ("weights", "all")
SAMPLE: Final = re.compile(r"sample-(0|[1-9][0-9]{0,9})")
"""Parts that are a few numbers of all, by a key below 2^32 (models/state_sample.py)."""
ENCODINGS: Final = ("raw", "bfloat16", "int8")
DIGEST_TEXT_MAX: Final = 64
RATE_FACTOR_MAX: Final = 100.0
COUNT_MAX: Final = 1 << 53
HISTORY_COMMITS_MAX: Final = 1000
HISTORY_NUMBERS_MAX: Final = 32_000
"""Of one StateHistory: 9 bytes each in a frame, some 25 in a line of the trace; both end at 1 MiB."""

_PREFIX = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame on a stream: which run, which life of the opener, where it can be dialled, and for what it is."""

    run: str
    nonce: int
    addresses: tuple[str, ...]
    lane: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a Hello; it may send now."""

    nonce: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a Hello or a StateRequest that cannot be served. `retry`: asking again later may help."""

    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class StateRequest:
    """Lend me the state of `stage` as of commit `commit` of step `step`. `parts`: weights, all (optimiser too), or a
    sample of all, which is frozen."""

    run: str
    stage: int
    step: int
    commit: str
    parts: str
    encoding: str
    """One of ENCODINGS; a lossy one only for weights, frozen. Of a copy: whatever it is kept in."""
    freeze: bool
    """To be kept: as the state is now, though the donor goes on while it is read."""
    copy: bool
    """The copy of the stage that the donor keeps, of this version or an earlier one."""
    since: int
    """Tell your commits after this step, too, behind the last chunk; -1: none."""


@dataclass(frozen=True, slots=True)
class StateHeader:
    """What follows: `chunks` StateChunks, `size` bytes together before they are encoded.

    `norm_squared` is ω, of the last committed gradient; `digest` is the hash of the weights as they are once they are
    decoded; `step_count` and `rate_factor` are the optimiser's.
    """

    version: Version
    norm_squared: float
    chunks: int
    size: int
    digest: str
    step_count: int
    rate_factor: float
    encoding: str


@dataclass(frozen=True, slots=True)
class StateChunk:
    """One chunk; its bytes follow the frame. `hash` is blake2b of them, 16 bytes."""

    index: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class StateHistory:
    """Commits, oldest first. An empty one is the last."""

    commits: tuple[Commit, ...]


Greeting = Hello | Welcome | Refusal
Transfer = StateRequest | StateHeader | StateChunk | StateHistory | Refusal
Framed = Message | Greeting | Transfer
GREETINGS: Final[dict[str, type]] = {kind.__name__: kind for kind in (Hello, Welcome, Refusal)}
TRANSFERS: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (StateRequest, StateHeader, StateChunk, StateHistory, Refusal)
}


class Oversized(FtnodeError):
    """What others have told makes a message of ours larger than a frame."""


def encode_frame(message: Framed, payload_bytes: int = 0) -> bytes:
    """Prefix and header; the caller writes the payload behind it. Raises Oversized."""
    header: bytes = msgpack.packb(tagged(message), use_bin_type=True)
    if len(header) > HEADER_BYTES_MAX:
        raise Oversized(f"{type(message).__name__} of {len(header)} bytes does not fit a frame")
    return _PREFIX.pack(len(header), payload_bytes) + header


def read_prefix(prefix: bytes | bytearray) -> tuple[int, int]:
    """(header length, payload length) of 8 bytes. The payload's is not checked yet: that takes the header."""
    header_bytes, payload_bytes = _PREFIX.unpack(prefix)
    if not 0 < header_bytes <= HEADER_BYTES_MAX:
        raise PeerError(f"a header of {header_bytes} bytes")
    return header_bytes, payload_bytes


def read_message(header: bytes | bytearray, payload_bytes: int, boundary_bytes: BoundaryBytes) -> Message:
    """The message of a frame on the step protocol. A Boundary alone has a payload, of exactly the bytes of its
    direction."""
    message: Message = from_tagged(MESSAGES, decode(header, HEADER_LIMITS))
    expected = boundary_bytes.of(message.direction) if isinstance(message, Boundary) else 0
    if payload_bytes != expected:
        raise PeerError(f"{type(message).__name__} with {payload_bytes} bytes behind it instead of {expected}")
    return message


def check_payload(boundary: Boundary, payload: memoryview, boundary_bytes: BoundaryBytes) -> None:
    """Raises PeerError for a tensor whose scales or tokens nobody can have made. Whatever the levels behind sound
    scales are, the numbers that they mean are finite."""
    if not sound_scales(payload[: boundary_bytes.scales_of(boundary.direction)]):
        raise PeerError("a boundary tensor with a scale that is negative, too large or no number")
    tokens = payload[boundary_bytes.tokens_in(boundary.direction)]
    if not sound_tokens(tokens, boundary_bytes.vocabulary):
        raise PeerError("a boundary tensor with a token that is none of the vocabulary")


def read_greeting(header: bytes | bytearray, payload_bytes: int) -> Greeting:
    """The Hello of an opener, or the answer to one."""
    greeting: Greeting = from_tagged(GREETINGS, decode(header, HEADER_LIMITS))
    if payload_bytes:
        raise PeerError("a greeting with bytes behind it")
    if isinstance(greeting, Hello | Welcome):
        _check_addresses(greeting.addresses)
    if isinstance(greeting, Hello) and greeting.lane not in LANES:
        raise PeerError(f"no such lane: {greeting.lane[:40]!r}")
    return greeting


def read_transfer(header: bytes | bytearray, payload_bytes: int, chunk_bytes_max: int) -> Transfer:
    """A frame of the state protocol. A StateChunk alone has a payload, of 1 to `chunk_bytes_max` bytes."""
    transfer: Transfer = from_tagged(TRANSFERS, decode(header, HEADER_LIMITS))
    if isinstance(transfer, StateChunk):
        if not 0 < payload_bytes <= chunk_bytes_max:
            raise PeerError(f"a chunk of {payload_bytes} bytes, where at most {chunk_bytes_max} fit")
    elif payload_bytes:
        raise PeerError(f"{type(transfer).__name__} with bytes behind it")
    if isinstance(transfer, StateRequest) and not _is_proper(transfer):
        raise PeerError("a StateRequest for what nobody lends")
    if isinstance(transfer, StateHeader) and not _is_possible(transfer):
        raise PeerError("a StateHeader of what cannot be")
    if isinstance(transfer, StateHistory) and not _is_ordered(transfer.commits):
        raise PeerError(f"a history of {len(transfer.commits)} commits, or not in order")
    return transfer


def _is_proper(request: StateRequest) -> bool:
    raw = request.encoding == "raw" or (request.freeze and request.parts == "weights")
    sample = SAMPLE.fullmatch(request.parts) is not None
    known = (request.parts in PARTS or (sample and request.freeze)) and request.encoding in ENCODINGS
    return known and raw and not (request.freeze and request.copy) and request.since >= -1


def _is_possible(header: StateHeader) -> bool:
    counts = (header.version.step, header.chunks, header.size, header.step_count)
    factors = 0 < header.rate_factor <= RATE_FACTOR_MAX and header.norm_squared >= 0
    known = header.encoding in ENCODINGS and len(header.digest) <= DIGEST_TEXT_MAX
    return all(0 <= count < COUNT_MAX for count in counts) and factors and known


def _is_ordered(commits: tuple[Commit, ...]) -> bool:
    steps = [commit.step for commit in commits]
    return len(steps) <= HISTORY_COMMITS_MAX and all(a < b for a, b in pairwise([0, *steps]))


def history_pieces(commits: Sequence[Commit]) -> Iterator[StateHistory]:
    """As many as a frame holds at a time, then the empty one that ends them."""
    widest = max((len(commit.norms) + 3 * len(commit.recoveries) for commit in commits), default=0) + 6
    count = max(1, min(HISTORY_COMMITS_MAX, HISTORY_NUMBERS_MAX // widest))
    for start in range(0, len(commits), count):
        yield StateHistory(tuple(commits[start : start + count]))
    yield StateHistory(())


def clean_reason(text: str) -> str:
    """A stranger's words, fit for a log: one line, printable, short."""
    return "".join(char if char.isprintable() else " " for char in text[:REASON_TEXT_MAX]).strip()


def _check_addresses(addresses: tuple[str, ...]) -> None:
    if len(addresses) > ADDRESSES_MAX or any(len(address) > ADDRESS_TEXT_MAX for address in addresses):
        raise PeerError(f"{len(addresses)} addresses, or one that is too long")
