"""How a newcomer gets its weights: donors' chunks, blended as they come (docs/explanation/recovery.md).

All donors of a blend stream at the same time and a chunk is given to compute as soon as it is here, so that memory
holds one stage and a few chunks, however large the model. Where the bytes come from is source.py's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError, ComputePort, LayersMissing
from ftnode.node.snapshots.state_digest import WholeHash
from ftnode.node.weights.copies import copy_digest
from ftnode.node.weights.known_snapshots import KnownSnapshots
from ftnode.node.weights.reading import call_in_time, call_with_slot, try_to_dump
from ftnode.node.weights.source import FAULTS, Borrower, StateSource, TransferFailed
from ftnode.protocol.recovery.rungs import REBUILT
from ftnode.protocol.wire.frames import StateHeader, StateRequest
from ftnode.protocol.words.donor_shares import shares
from ftnode.protocol.words.effects import Install
from ftnode.protocol.words.events import History, Installed, InstallFailed
from ftnode.protocol.words.messages import OTHER_COPY, Donor, Plan
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Rung

log = logging.getLogger(__name__)

EXACT: Final = (Rung.REPLICA, Rung.HEAD, Rung.SNAPSHOT)
"""Rungs that take optimiser state and step count along."""
TOGETHER: Final = (Rung.BLEND, Rung.INTERPOLATE)
"""Rungs that need all donors at once; every other wants one, so that the next is asked when one fails."""


@dataclass(frozen=True, slots=True)
class DonorRecord:
    """What one donor gave, for the trace. `weight`: its share of the blend; all shares add up to 1."""

    stage: int
    peer: Peer
    omega: float
    weight: float
    digest: str


@dataclass(frozen=True, slots=True)
class InstallOutcome:
    """`donors` is empty after a failure. `dump`: name of the file with the new weights, or "".

    `copy_step`: of which step the weights are, where they come from a copy. `history`: what a donor told, to be heard
    before `event`.
    """

    event: Installed | InstallFailed
    donors: tuple[DonorRecord, ...] = ()
    dump: str = ""
    copy_step: int | None = None
    history: tuple[History, ...] = ()


@dataclass(frozen=True, slots=True)
class _Fetching:
    """One try: who gives what, with which share."""

    effect: Install
    donors: Sequence[Donor]
    sources: Sequence[StateSource]
    weights: Sequence[float]
    whole: WholeHash | None = None
    """Of a snapshot, which must be the one that the swarm agreed on."""

    @property
    def header(self) -> StateHeader:
        return self.sources[0].header

    def step_count(self, parts: str) -> int:
        """Updates that the optimiser's state has seen; those of a blend are of the donors, by their shares."""
        if parts == "weights":
            return 0
        return round(sum(weight * source.header.step_count for weight, source in zip(self.weights, self.sources)))

    def require_agreed(self, parts: str) -> None:
        """After the last chunk. Raises TransferFailed when weights, moments or counts are others than most have, or of
        a copy others than the keeper was lent."""
        said, plan, donor = self.header, self.effect.plan, self.donors[0].peer
        if parts != "weights" and said.step_count > max(0, said.version.step):
            raise TransferFailed(donor, f"{donor} says that {said.step_count} updates were made by then")
        if self.whole and self.whole.digest(said.step_count, said.rate_factor) != plan.digest:
            raise TransferFailed(donor, "a snapshot with another digest than most have")
        if wants_copies(plan) and not plan.takes(copy_digest(plan.stage, parts, said, self.sources[0].hashes)):
            raise TransferFailed(donor, f"{donor} has {OTHER_COPY}, of step {said.version.step}")


def wants_copies(plan: Plan) -> bool:
    """Whether the donors are asked for copies that they keep, and not for what they hold or have on a disk."""
    return plan.copy is not None and plan.rung is not Rung.SNAPSHOT


class FirstWeights(Protocol):
    """Where first weights lie (node/data/first_layers.py)."""

    @property
    def frozen(self) -> bool:
        """Some of them are not trained, and so are needed for the whole run."""
        ...

    async def layers(self, stage: int) -> dict[str, Any]:
        """Raises LayersMissing."""
        ...

    def spoiled(self, stage: int) -> None: ...


class Installer:
    """Carries out Install effects, one call of `install` each."""

    def __init__(
        self,
        run: str,
        settings: Settings,
        arena: Arena,
        compute: ComputePort,
        borrower: Borrower,
        since: Callable[[], int] = lambda: -1,
        dump_folder: Path | None = None,
    ) -> None:
        """`since`: we want to hear of the commits after this step, too; -1: of none. `dump_folder`: rebuilt weights
        are written there, too."""
        self._run, self._settings = run, settings
        self._arena, self._compute = arena, compute
        self._borrower, self._since = borrower, since
        self._dump_folder = dump_folder
        self.first: FirstWeights | None = None
        """Of a run that begins with a model that exists."""
        self.disk: KnownSnapshots | None = None
        """What this node has on its own."""

    async def install(self, effect: Install) -> InstallOutcome:
        """Fill the stage as the plan says. Never raises for what peers or compute do: that is an InstallFailed."""
        plan, base = effect.plan, effect.base
        try:
            if plan.rung in (Rung.INITIAL, Rung.FIRST):
                return await self._begin_stage(effect)
            return await self._fetch(effect)
        except TransferFailed as failure:
            return InstallOutcome(InstallFailed(plan.stage, base, failure.donor, failure.reason))
        except (ComputeError, LayersMissing) as error:
            return InstallOutcome(InstallFailed(plan.stage, base, None, str(error)))

    async def _begin_stage(self, effect: Install) -> InstallOutcome:
        """Random first weights, or those of the model that the run goes on from, as the weights of the base."""
        stage, base = effect.plan.stage, effect.base
        if self.first is None:
            answer = await call_in_time(self._compute, "initialise", stage=stage, commit=base.commit)
        else:
            answer = await self._from_first(
                stage, "initialise", step=base.step, commit=base.commit, attempt=list(base.attempt)
            )
        event = Installed(stage, base, 0, 0.0, 0.0, str(answer["digest"]))
        return InstallOutcome(event, dump=await self._dump(effect) if base.step else "")

    async def _from_first(self, stage: int, op: str, **fields: Any) -> dict[str, Any]:
        """A command that reads layers of the model that the run goes on from. Raises LayersMissing, ComputeError."""
        assert self.first is not None
        first = await self.first.layers(stage)
        try:
            return await call_in_time(self._compute, op, stage=stage, first=first, **fields)
        except ComputeError as error:
            if error.kind == "layers":
                self.first.spoiled(stage)
            raise

    async def _fill(self, stage: int, op: str, **fields: Any) -> dict[str, Any]:
        """A command that makes a stage; what is frozen of it nobody hands on."""
        if self.first is not None and self.first.frozen:
            return await self._from_first(stage, op, **fields)
        return await call_in_time(self._compute, op, stage=stage, **fields)

    async def _fetch(self, effect: Install) -> InstallOutcome:
        if self.first is not None and self.first.frozen:
            await self.first.layers(effect.plan.stage)  # they may have to be fetched, and no donor waits for that
        donors = effect.plan.donors
        if not donors:
            raise TransferFailed(None, f"a {effect.plan.rung} without donors")
        if effect.plan.rung in TOGETHER:
            return await self._fetch_from(effect, donors)
        for donor in donors[:-1]:
            try:
                return await self._fetch_from(effect, (donor,))
            except TransferFailed as failure:
                log.warning("stage %d not from %s: %s", effect.plan.stage, donor.peer, failure.reason)
        return await self._fetch_from(effect, donors[-1:])

    async def _load(self, effect: Install) -> InstallOutcome:
        """The stage from our own disk, straight into compute."""
        plan, base = effect.plan, effect.base
        kept = self.disk.find(plan.stage, base, plan.digest) if self.disk is not None else None
        if self.disk is None or kept is None:
            raise TransferFailed(None, f"no snapshot of stage {plan.stage} of step {base.step} is here any more")
        try:
            answer = await self._fill(
                plan.stage, "snapshot_load", folder=str(kept.folder), step=base.step, commit=base.commit,
                attempt=list(base.attempt),
            )  # fmt: skip
        except ComputeError as error:
            if error.kind == "invalid":
                self.disk.damaged(kept, error.reason)
            elif error.kind == "unreadable":
                self.disk.unread(kept, error.reason)
            raise TransferFailed(None, error.reason) from None
        event = Installed(plan.stage, base, 0, float(answer["seconds"]), 0.0, str(answer["digest"]))
        record = DonorRecord(plan.stage, self._borrower.me, kept.index.state.norm_squared, 1.0, kept.digest)
        return InstallOutcome(event, (record,), await self._dump(effect))

    async def _fetch_from(self, effect: Install, donors: Sequence[Donor]) -> InstallOutcome:
        plan, base = effect.plan, effect.base
        if plan.rung is Rung.SNAPSHOT and donors[0].peer == self._borrower.me:
            return await self._load(effect)
        started = trio.current_time()
        async with AsyncExitStack() as stack:
            sources: list[StateSource] = []
            for donor in donors:
                wants_history = not any(source.remote for source in sources)
                sources.append(await self._borrower.open(donor, self._request(effect, donor, wants_history), stack))
            whole = self._borrower.shape.whole_hash(plan.stage) if plan.digest else None
            fetching = _Fetching(effect, donors, sources, self._weights(plan, donors, sources), whole)
            await self._begin(fetching)
            size = await self._copy_all(fetching)
            fetching.require_agreed(self._parts(plan.rung))
            told = [await self._borrower.history(donor.peer, source) for donor, source in zip(donors, sources)]
        answer = await self._end(fetching)
        seconds, blend = trio.current_time() - started, float(answer["blend_seconds"])
        event = Installed(plan.stage, base, size, max(0.0, seconds - blend), blend, str(answer["digest"]))
        records = tuple(
            DonorRecord(donor.stage, donor.peer, source.header.norm_squared, weight, source.header.digest)
            for donor, source, weight in zip(donors, sources, fetching.weights)
        )
        copy_step = None if plan.copy is None else fetching.header.version.step
        return InstallOutcome(event, records, await self._dump(effect), copy_step, sum(told, ()))

    def _request(self, effect: Install, donor: Donor, wants_history: bool) -> StateRequest:
        plan, base = effect.plan, effect.base
        return StateRequest(
            self._run, donor.stage, base.step, base.commit, self._parts(plan.rung), "raw", freeze=False,
            copy=wants_copies(plan), since=self._since() if wants_history else -1,
        )  # fmt: skip

    def _parts(self, rung: Rung) -> str:
        blended = rung in REBUILT and self._settings.optimiser_state == "blended"
        return "all" if rung in EXACT or blended else "weights"

    def _weights(self, plan: Plan, donors: Sequence[Donor], sources: Sequence[StateSource]) -> tuple[float, ...]:
        if plan.rung not in REBUILT:
            return (1.0,)
        settings = self._settings
        return shares(
            [source.header.norm_squared for source in sources],
            [abs(donor.stage - plan.stage) for donor in donors],
            settings.weighting,
            settings.clip if settings.norms == "after-clipping" else float("inf"),
        )

    async def _begin(self, fetching: _Fetching) -> None:
        plan, base = fetching.effect.plan, fetching.effect.base
        tried = [donor.stage for donor in fetching.donors if donor.peer != self._borrower.me]
        kept = {"tried": tried} if self._settings.checks and plan.rung in REBUILT and tried else {}
        await self._fill(
            plan.stage,
            "install_begin",
            **kept,
            step=base.step,
            commit=base.commit,
            attempt=list(base.attempt),
            parts=self._parts(plan.rung),
            rate_factor=fetching.header.rate_factor if plan.rung in EXACT else plan.rate_factor,
        )

    async def _copy_all(self, fetching: _Fetching) -> int:
        """All donors at the same time; the first failure ends the others after their current chunk. Answers how many
        bytes came over the wire."""
        failures: list[TransferFailed | ComputeError] = []
        sizes: list[int] = []

        async def copy(donor: Donor, source: StateSource, weight: float) -> None:
            try:
                for index in range(source.header.chunks):
                    await trio.lowlevel.checkpoint()  # what we wait for may all be there, and we not wanted any more
                    length = await self._copy(fetching, index, donor, source, weight)
                    sizes.append(length if source.remote else 0)
            except (TransferFailed, ComputeError) as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for donor, source, weight in zip(fetching.donors, fetching.sources, fetching.weights):
                nursery.start_soon(copy, donor, source, weight)
        if failures:
            raise failures[0]
        return sum(sizes)

    async def _copy(self, fetching: _Fetching, index: int, donor: Donor, source: StateSource, weight: float) -> int:
        try:
            handle, length = await source.next_chunk(index)
        except FAULTS as error:
            raise self._borrower.blame(donor.peer, error) from None
        try:
            slot = self._arena.slot(handle)
            if fetching.whole is not None:
                fetching.whole.add(self._arena.view(handle)[:length])
            await call_with_slot(
                self._compute, "install_chunk", stage=fetching.effect.plan.stage, index=index, weight=weight,
                slot=slot, length=length, encoding=source.header.encoding, lender=donor.stage,
            )  # fmt: skip
        except ComputeError as error:
            raise self._whose(error, (donor,)) from None
        finally:
            self._arena.release(handle)
        return length

    async def _end(self, fetching: _Fetching) -> dict[str, Any]:
        plan, header = fetching.effect.plan, fetching.header
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            answer = await call_in_time(
                self._compute, "install_end", stage=plan.stage,
                step_count=fetching.step_count(self._parts(plan.rung)),
                norm_squared=0.0 if plan.rung in REBUILT else header.norm_squared,
            )  # fmt: skip
        except ComputeError as error:
            raise self._whose(error, fetching.donors) from None
        if plan.rung not in REBUILT and header.digest and answer["digest"] != header.digest:
            raise TransferFailed(fetching.donors[0].peer, "the weights do not have the hash that it announced")
        return answer

    def _whose(self, error: ComputeError, donors: Sequence[Donor]) -> TransferFailed | ComputeError:
        """Numbers that are not finite, and moments that no training makes, are their donor's, where there is one."""
        if error.kind != "fault":
            return error
        others = [donor.peer for donor in donors if donor.peer != self._borrower.me]
        return TransferFailed(others[0] if len(donors) == len(others) == 1 else None, error.reason)

    async def _dump(self, effect: Install) -> str:
        if self._dump_folder is None:
            return ""
        plan, base = effect.plan, effect.base
        me = self._borrower.me.id
        name = f"installed-{plan.stage}-{base.step}-{base.commit[:12]}-{me[-6:]}.weights"
        kept = await try_to_dump(self._compute, self._arena, plan.stage, base, self._dump_folder / name)
        return name if kept else ""
