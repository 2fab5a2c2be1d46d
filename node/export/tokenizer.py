"""The tokenizer of a run whose data are token shards, from the run's members by `/ftnode/data/2` (shard_lending.py).

The index comes first, whose hash the manifest has, and then tokenizer.json, whose hash the index has. Holders of the
head are asked first: they have all of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

import trio

from ftnode.models.shards import BLOCK_BYTES, INDEX_BYTES_MAX
from ftnode.node.data.shard_wire import DATA_PROTOCOL, ShardReply, ShardRequest, hear
from ftnode.node.export.search import (
    ANSWER_SECONDS,
    FAULTS,
    UNAVAILABLE,
    Dialer,
    find_member,
    open_stream,
    reason_of,
)
from ftnode.node.export.tokenizer_files import KnownTokenizer
from ftnode.node.export.wire import EXPORT_PROTOCOL, Holders, WhoHolds, hear_answer
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import read_exactly
from ftnode.protocol.wire.frames import Refusal, clean_reason
from ftnode.protocol.words.errors import LocalError, PeerError, UserError

ERRORS = "export_tokenizer"

PAUSE_SECONDS: Final = 2.0
BLOCK_SECONDS: Final = 60.0
FILE_SECONDS: Final = 300.0
"""For a whole file, of some MiB as a rule: a peer that sends each block at the last moment would take an hour."""
HOLDERS_ASKED_MAX: Final = 16
SEARCH_SECONDS_MIN: Final = 1.0


class _Refused(PeerError):
    """`retry`: the same peer may give it later."""

    def __init__(self, reason: str, retry: bool) -> None:
        super().__init__(reason)
        self.retry = retry


async def fetch_tokenizer(
    dialer: Dialer, peers: Sequence[PeerAddress], known: KnownTokenizer, seconds: float, tell: Callable[[str], None]
) -> KnownTokenizer:
    """`known` with nothing missing. New attempts are made for `seconds`; `tell` hears why.

    Raises UserError: 69 when nobody gave it, 65 when it is not the one that was given.
    """
    deadline, run = trio.current_time() + seconds, known.manifest.run_id
    for _ in count():
        if not known.missing:
            return known
        left = max(deadline - trio.current_time(), SEARCH_SECONDS_MIN)
        member = await find_member(dialer, peers, run, left)
        reasons: list[str] = []
        hopeless = True
        for peer in await _whom_to_ask(dialer, member.peer, run):
            try:
                while known.missing:
                    known = known.with_file(known.missing, await _read_file(dialer, peer, known))
                return known
            except FAULTS as error:
                reasons.append(f"{clean_reason(peer.peer_id[-6:])}: {reason_of(error)}")
                hopeless &= isinstance(error, _Refused) and not error.retry
        reason = f"the run's tokenizer does not come from its members ({'; '.join(reasons[:3])})"
        if hopeless or trio.current_time() + PAUSE_SECONDS > deadline:
            raise UserError(f"{reason}; pass --tokenizer with its tokenizer.json, or the folder of shards", UNAVAILABLE)
        tell(reason)
        await trio.sleep(PAUSE_SECONDS)
    raise LocalError("an endless count has ended")


async def _whom_to_ask(dialer: Dialer, member: PeerAddress, run: str) -> list[PeerAddress]:
    """Holders by stage, each once; the member itself when it names none."""
    try:
        async with await open_stream(dialer, member, EXPORT_PROTOCOL) as stream:
            with trio.fail_after(ANSWER_SECONDS):
                await say(stream, WhoHolds(run))
                answer = await hear_answer(stream)
    except FAULTS:
        return [member]
    places = sorted(answer.places, key=lambda place: place.stage) if isinstance(answer, Holders) else []
    named = {place.peer: PeerAddress(place.peer, place.addresses) for place in places}
    return list(named.values())[:HOLDERS_ASKED_MAX] or [member]


async def _read_file(dialer: Dialer, peer: PeerAddress, known: KnownTokenizer) -> bytes:
    """The file that is missing. Raises one of FAULTS."""
    size_max = INDEX_BYTES_MAX if known.facts is None else known.facts.bytes
    async with await open_stream(dialer, peer, DATA_PROTOCOL) as stream:
        with trio.fail_after(ANSWER_SECONDS):
            await say(stream, ShardRequest(known.manifest.run_id, known.missing))
            answer = await hear(stream)
        if isinstance(answer, Refusal):
            raise _Refused(clean_reason(answer.reason), answer.retry)
        if not isinstance(answer, ShardReply) or answer.size > size_max:
            raise PeerError(f"an answer that is not the {known.missing} asked for")
        data = bytearray()
        with trio.fail_after(FILE_SECONDS):
            while len(data) < answer.size:
                with trio.fail_after(BLOCK_SECONDS):
                    data += await read_exactly(stream, min(answer.size - len(data), BLOCK_BYTES))
        return bytes(data)
