"""What is said on `/ftnode/export/1`: a reader, who need not be a member, gets the weights of a stage.

    reader → member   WhoHolds                member → reader   Holders, or a Refusal; again as often as wanted
    reader → holder   ExportRequest           holder → reader   ExportOffer once it has that step, or a Refusal
    reader → holder   SendIt                  holder → reader   the weights: `size` bytes, nothing around them
    reader → holder   Written, and the holder hangs up; or the reader does

The weights are the stage's flat buffer, little-endian numbers of the model's precision, in the order of
models/parameters.py; their length is the manifest's, and their hash was in the offer. A frame is 4 bytes length, then
msgpack.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.links.side_messages import hear
from ftnode.protocol.wire.frames import COUNT_MAX, Refusal
from ftnode.protocol.words.errors import PeerError

EXPORT_PROTOCOL: Final = "/ftnode/export/1"
ASKED_BYTES_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 1 << 20
PLACES_MAX: Final = 2048
"""Holders that an answer names; one for each of 257 stages, and some of their replicas."""
WAIT_SECONDS: Final = 900.0
"""That a holder waits for a step to come. A step of the largest models takes minutes."""
DIGEST: Final = re.compile(r"[0-9a-f]{32}")
COMMIT: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")


@dataclass(frozen=True, slots=True)
class WhoHolds:
    """Who holds the stages of this run, and at which step is it?"""

    run: str


@dataclass(frozen=True, slots=True)
class Place:
    """One holder of one stage. `addresses`: without /p2p."""

    stage: int
    epoch: int
    peer: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holders:
    """`step`: the last committed. `seconds`: of the newest steps, each; 0 while they do not follow each other, because
    the run is over, halted or waits. A stage that nobody holds has no place."""

    run: str
    step: int
    seconds: float
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Offer me the weights of `stage` after `step`, which may be to come."""

    run: str
    stage: int
    step: int


@dataclass(frozen=True, slots=True)
class ExportOffer:
    """They stay as they are until they were sent, or the deadline is over. `digest`: blake2b, 16 bytes, in hex."""

    step: int
    commit: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class SendIt:
    """All stages were offered, and fit together."""


@dataclass(frozen=True, slots=True)
class Written:
    """The whole model is on the reader's disk."""


Asked = WhoHolds | ExportRequest | SendIt | Written
Answer = Holders | ExportOffer | Refusal
ASKED: Final[dict[str, type]] = {kind.__name__: kind for kind in (WhoHolds, ExportRequest, SendIt, Written)}
ANSWERS: Final[dict[str, type]] = {kind.__name__: kind for kind in (Holders, ExportOffer, Refusal)}


async def hear_asked(stream: trio.SocketStream) -> Asked:
    """What a reader says next. Raises PeerError and one of STREAM_ERRORS."""
    asked: Asked = await hear(stream, ASKED, ASKED_BYTES_MAX)
    if isinstance(asked, ExportRequest) and not (0 <= asked.stage < COUNT_MAX and 0 <= asked.step < COUNT_MAX):
        raise PeerError("an ExportRequest for what cannot be")
    return asked


async def hear_answer(stream: trio.SocketStream) -> Answer:
    """What a holder says next. Raises PeerError and one of STREAM_ERRORS."""
    answer: Answer = await hear(stream, ANSWERS, ANSWER_BYTES_MAX)
    if isinstance(answer, ExportOffer):
        counts = (answer.step, answer.size)
        if not all(0 <= count < COUNT_MAX for count in counts) or not COMMIT.fullmatch(answer.commit):
            raise PeerError("an ExportOffer of what cannot be")
        if not DIGEST.fullmatch(answer.digest):
            raise PeerError("an ExportOffer without a hash")
    if isinstance(answer, Holders) and (len(answer.places) > PLACES_MAX or min(answer.step, answer.seconds) < 0):
        raise PeerError("an answer about holders that cannot be")
    return answer
