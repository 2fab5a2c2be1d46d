"""Fetches copies of stages of others in the background, straight into memory (effect Keep)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

import trio

from ftnode.node.ports import REASON_TEXT_MAX, ComputeError
from ftnode.node.weights.copies import Copy
from ftnode.node.weights.source import FAULTS, Borrower, StateSource, TransferFailed
from ftnode.protocol.wire.frames import StateRequest
from ftnode.protocol.words.effects import Keep
from ftnode.protocol.words.events import History, KeepFailed, Kept


@dataclass(frozen=True, slots=True)
class Fetched:
    """`copy` is None after a failure. `history`: what the donor told, to be heard before `event`."""

    event: Kept | KeepFailed
    copy: Copy | None
    history: tuple[History, ...]


class CopyFetcher:
    """Carries out Keep effects, one call of `fetch` each. What becomes of a copy is its caller's business."""

    def __init__(self, run: str, borrower: Borrower) -> None:
        self._run, self._borrower = run, borrower

    async def fetch(self, effect: Keep) -> Fetched:
        """Never raises for what the donor or its compute do: that is a KeepFailed."""
        stage, version = effect.donor.stage, effect.version
        started = trio.current_time()
        try:
            copy, taken, history = await self._fetch(effect)
        except (TransferFailed, ComputeError, MemoryError) as error:
            reason = (str(error) or type(error).__name__)[:REASON_TEXT_MAX]
            return Fetched(KeepFailed(stage, version, reason), None, ())
        return Fetched(Kept(stage, version, taken, trio.current_time() - started), copy, history)

    async def _fetch(self, effect: Keep) -> tuple[Copy, int, tuple[History, ...]]:
        """The copy, the bytes that came over the wire for it, and the donor's commits."""
        donor, version = effect.donor, effect.version
        request = StateRequest(
            self._run, donor.stage, version.step, version.commit, effect.parts, effect.encoding, freeze=True,
            copy=False, since=effect.since,
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            source = await self._borrower.open(donor, request, stack)
            try:
                copy = await self._read(source, request)
            except FAULTS as error:
                raise self._borrower.blame(donor.peer, error) from None
            return copy, copy.size if source.remote else 0, await self._borrower.history(donor.peer, source)

    async def _read(self, source: StateSource, request: StateRequest) -> Copy:
        """The sizes are the manifest's: `open` has seen to that."""
        chunks, hashes = [], []
        for index, length in enumerate(self._borrower.shape.lengths(request.stage, request.parts, request.encoding)):
            chunks.append(bytearray(length))
            hashes.append(await source.read(index, memoryview(chunks[-1])))
        return Copy(source.header, request.parts, tuple(chunks), tuple(hashes))
