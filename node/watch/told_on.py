"""A member's own words on its run, which a meeting point tells on when no member can be reached.

Each node signs a line of health with what it writes into the directory anyway (`RunNotice`). A meeting point hands it
to watchers as it is: it can keep it back, but neither change it nor make it younger, since the moment is signed too.
The watcher checks the signature and says how old the words are. Members that can be reached are asked instead.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgpack

from ftnode.node.home.duration import duration
from ftnode.node.home.identity import Sign, verify
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.watch.peer_choice import is_meant
from ftnode.node.watch.status import Speaker, SwarmStatus, perplexity_of
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.words.codec import encode_canonical, from_plain
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

DOMAIN: Final = "ftnode told status 1"
"""So that no signature for anything else can pass for one of a status."""
WORDS_BYTES_MAX: Final = 1024
WORDS_TEXT_MAX: Final = (WORDS_BYTES_MAX + 2) // 3 * 4
WORDS_LIMITS: Final = Limits(size=WORDS_BYTES_MAX, depth=2)
SIGNATURE_BYTES: Final = 64
SENTENCE_MAX: Final = 120
"""Letters of what a run waits for, or else of its most urgent alarm; each takes 4 bytes at most."""
STATE_MAX: Final = 16
TOLD_RUNS_MAX: Final = 16
MEMBERS_READ_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Words:
    """What is signed. Losses are nats per token, as SwarmStatus has them."""

    domain: str
    run: str
    name: str
    peer: str
    made_ms: int
    """Unix time by the member's clock."""
    step: int
    steps: int
    loss: float | None
    validation: float | None
    tokens_per_second: float | None
    eta_seconds: float | None
    volunteers: int
    state: str
    waiting: str
    alarm: str


def signed_words(status: SwarmStatus, made_ms: int, sign: Sign) -> str:
    """What the member whose status this is says of its run, in base64; empty where it does not fit."""
    words = Words(
        DOMAIN, status.run, status.name, status.speaker.peer, made_ms, status.step, status.steps, status.loss,
        status.validation, status.tokens_per_second, status.eta_seconds, status.volunteers, status.state[:STATE_MAX],
        status.waiting[:SENTENCE_MAX], "" if status.waiting else "".join(status.alarms[:1])[:SENTENCE_MAX],
    )  # fmt: skip
    payload = encode_canonical(words)
    data: bytes = msgpack.packb([payload, sign(payload)], use_bin_type=True)
    return base64.b64encode(data).decode() if len(data) <= WORDS_BYTES_MAX else ""


def read_words(text: str, peer: str, run: str) -> Words:
    """Those that `peer` signed of `run`. Raises PeerError for all others."""
    if len(text) > WORDS_TEXT_MAX:
        raise PeerError(f"words of {len(text)} letters")
    try:
        envelope = decode(base64.b64decode(text, validate=True), WORDS_LIMITS)
    except ValueError:
        raise PeerError("words that are no base64") from None
    match envelope:
        case [bytes(payload), bytes(signature)] if len(signature) == SIGNATURE_BYTES:
            words: Words = from_plain(Words, decode(payload, WORDS_LIMITS))
        case _:
            raise PeerError("words that are not [words, signature]")
    if (words.domain, words.peer, words.run) != (DOMAIN, peer, run):
        raise PeerError("words of somebody else, or of another run")
    if not verify(peer, payload, signature):
        raise PeerError(f"the signature of what is told on is not by {peer[:60]}")
    return words


def told_on(
    points: Iterable[tuple[PeerAddress, SwarmStatus]], wanted: str, clock: float
) -> list[tuple[PeerAddress, SwarmStatus]]:  # fmt: skip
    """A status of each run that is meant, by the newest words of a member that these meeting points tell on, and who
    does. `clock`: Unix time here."""
    newest: dict[str, tuple[int, PeerAddress, SwarmStatus]] = {}
    for point, status in points:
        for member in [one for one in status.members if one.words][:MEMBERS_READ_MAX]:
            try:
                words = read_words(member.words, member.peer, member.run)
            except PeerError as error:
                log.info("%s tells on what nobody said: %s", point.peer_id, error)
                continue
            before = newest[words.run][0] if words.run in newest else -1
            if is_meant(wanted, words.run, words.name) and words.made_ms > before:
                newest[words.run] = words.made_ms, point, status_of(words, point.peer_id, clock)
    return [(point, status) for _, point, status in newest.values()][:TOLD_RUNS_MAX]


def status_of(words: Words, told_by: str, clock: float) -> SwarmStatus:
    """As if the member had answered, as far as it said anything."""
    return SwarmStatus(
        Speaker(words.peer, "", "", "volunteer"), run=words.run, name=words.name, step=words.step, steps=words.steps,
        loss=words.loss, validation=words.validation, perplexity=perplexity_of(words.validation),
        tokens_per_second=words.tokens_per_second, eta_seconds=words.eta_seconds, volunteers=words.volunteers,
        state=words.state, waiting=words.waiting, alarms=(words.alarm,) if words.alarm else (),
        told_by=told_by, told_age=max(0.0, clock - words.made_ms / 1000),
    )  # fmt: skip


def told_line(status: SwarmStatus) -> str:
    """Of a status that was told on: why it says no more, and how old it is."""
    return (
        f"no member could be reached: {status.speaker.peer} signed this {duration(status.told_age or 0.0)} ago, and "
        f"the meeting point {status.told_by} tells it on"
    )
