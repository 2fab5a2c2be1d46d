"""Which commits a node keeps snapshots of, and its part in keeping them.

At a commit that the manifest's `snapshot_every` divides, and at the last one of the run, the compute process is told to
copy the stage's state into shared memory, between the update and whatever comes next: all stages of the swarm keep the
same steps, and training waits for a copy in memory and no more. A thread then writes it down. A stage whose last
snapshot is still being written is left out, once, and that is said; so is every other trouble. Training goes on in any
case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path
from threading import Event
from typing import Any, Final

import trio

from ftnode.models.config import ModelConfig
from ftnode.node.home.size import size_text
from ftnode.node.machine.snapshot_memory import SnapshotMemory
from ftnode.node.ports import ComputeError
from ftnode.node.snapshots.format import DataPosition, KeptSnapshot, Lineal, SnapshotError, StageIndex, StageState
from ftnode.node.snapshots.same_home import held_by_others
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.node.snapshots.write import DiskAllowance, save_once, write_snapshot
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.types import Attempt, Version, spoken_stage
from ftnode.protocol.words.view import View

log = logging.getLogger(__name__)

TROUBLES_MAX: Final = 4
"""Said one after the other; what comes behind them is only logged, until a snapshot is kept again."""


def is_due(step: int, every: int, last: int) -> bool:
    """Step 0 is a function of the manifest, and kept by it. After the `last` one is the model that was wanted."""
    return every > 0 and step > 0 and (step % every == 0 or step == last)


@dataclass(frozen=True, slots=True)
class About:
    """What does not change while a node lives."""

    run: str
    stages: int
    model: ModelConfig
    optimiser: str
    corpus: str
    seed: int
    last: int
    """The step with which the run is over."""

    def index(self, stage: int, view: View | None, answer: dict[str, Any]) -> StageIndex:
        """Of a stage's copy, as far as it is known before it is written. `answer`: compute's."""
        step, commit, (number, n) = answer["version"]
        version = Version(int(step), str(commit), Attempt(int(number), int(n)))
        lineal = Lineal("", 0, 0, 0)
        if view is not None:
            lineal = Lineal(view.lineage.id, view.lineage.forks, view.number, view.epochs[stage])
        state = StageState(float(answer["norm_squared"]), float(answer["rate_factor"]), int(answer["step_count"]))
        return StageIndex(
            self.run, stage, self.stages, version, lineal, state,
            DataPosition(self.corpus, self.seed, version.step + 1), self.model, self.optimiser, "", {}, 0, 0.0,
            version_of("ftnode"),
        )  # fmt: skip


def about_of(manifest: Manifest) -> About:
    model, stages, kind = ModelConfig.of(manifest.model), manifest.pipeline.stages, manifest.optimiser.kind
    return About(manifest.run_id, stages, model, kind, manifest.data.sha256, manifest.run.seed, manifest.run.steps)


class NoSaver:
    """Of a driver that nobody gave another."""

    def applied(self, stage: int, version: Version) -> None:
        return

    def forgotten(self, stage: int) -> None:
        return


class SnapshotSaver:
    """`applied` after every update. `post`: of the compute process. Nothing is kept before `run`, nor after it.

    `every`: 0 when nothing is to be kept; `once` still saves what its owner asks for. `view`: ours now; `held`: our
    stages now. `fits`: may copies take so many bytes more of the host.
    """

    def __init__(
        self,
        store: SnapshotStore,
        memory: SnapshotMemory,
        post: Callable[..., None],
        about: About,
        every: int,
        allowance: DiskAllowance,
        view: Callable[[], View | None],
        held: Callable[[], Collection[int]],
        say: Callable[..., None],
        fits: Callable[[int], bool] = lambda size: True,
    ) -> None:
        self.store, self._memory, self._post = store, memory, post
        self._about, self._every, self._allowance = about, every, allowance
        self._view, self.held, self._say, self._fits = view, held, say, fits
        self._busy: set[int] = set()
        """Stages that are copied or written: their memory is in use."""
        self._later: dict[int, Callable[[], None]] = {}
        """Saves that were asked for meanwhile, one for each stage at most."""
        self._nursery: trio.Nursery | None = None
        self._writing = trio.CapacityLimiter(1)
        """One disk: two writes at once end no sooner."""
        self._stop = Event()
        self._troubles: list[str] = []
        self._warned = False
        self.on_kept: Callable[[], None] = lambda: None
        """Called when a snapshot is whole."""

    async def run(self) -> None:
        """Write until cancelled; then what is half-written is dropped."""
        try:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._stop.set()
            for stage in list(self._later):
                self._later.pop(stage)()

    def close(self) -> None:
        """After `run`: the memory goes as soon as nobody writes from it."""
        self._memory.close()

    def applied(self, stage: int, version: Version) -> None:
        """An update of this stage has been ordered, and nothing behind it yet."""
        if not is_due(version.step, self._every, self._about.last) or self._nursery is None:
            return
        self._warn_of_limit()
        if stage in self._busy:
            self._trouble(
                f"step {version.step} of {spoken_stage(stage)} is not kept: an earlier snapshot is still being "
                "written; this disk is slow for the run's recovery.snapshot_every"
            )
            return

        self._copy(stage, version.step, self._writer(), self._kept, self._trouble)

    def once(self, stage: int, path: Path, done: Callable[[KeptSnapshot], None], failed: Callable[[str], None]) -> None:
        """Save a stage as it is now, or once an earlier snapshot of it is written, to `path`, beside all counting and
        clearing away; `done` or `failed` follows."""
        if self._nursery is None:
            failed("this node has no stages now")
        elif stage in self._later:
            failed(f"stage {stage} is to be saved already")
        elif stage in self._busy:
            self._later[stage] = partial(self.once, stage, path, done, failed)
        else:
            self._copy(stage, None, lambda state, index: save_once(path, state, index, stop=self._stop), done, failed)

    @property
    def keeps(self) -> bool:
        """Whether the run asks for snapshots and this node's owner gives room for them."""
        return self._every > 0

    async def keep_now(self, stages: Collection[int]) -> str:
        """Keep these stages as they are, beside what is due. Nothing may be ordered of compute meanwhile, so that all
        are of one version. Why they are not; empty when all are on the disk, and the memory of their copies is free."""
        kept: list[KeptSnapshot] = []
        troubles: list[str] = []
        settled = trio.Event()

        def look() -> None:
            if len(kept) + len(troubles) == len(stages):
                settled.set()

        def done(snapshot: KeptSnapshot) -> None:
            kept.append(snapshot)
            self._kept(snapshot)
            look()

        def failed(reason: str) -> None:
            log.warning("%s", reason)
            troubles.append(reason)
            look()

        before = dict(self._later)
        for stage in stages:
            self._now(stage, done, failed)
        ours = {stage: later for stage, later in self._later.items() if before.get(stage) is not later}
        try:
            await settled.wait()
        finally:  # who is not waited for any more is not saved again
            for stage in [stage for stage, later in ours.items() if self._later.get(stage) is later]:
                del self._later[stage]
        if troubles or len({snapshot.version for snapshot in kept}) > 1:
            return troubles[0] if troubles else "its stages are of different steps"
        for stage in stages:
            self.forgotten(stage)
        return ""

    def _now(self, stage: int, done: Callable[[KeptSnapshot], None], failed: Callable[[str], None]) -> None:
        if self._nursery is None:
            failed("this node has no stages now")
        elif stage in self._later:
            failed(f"stage {stage} is to be saved already")
        elif stage in self._busy:
            self._later[stage] = partial(self._now, stage, done, failed)
        else:
            self._copy(stage, None, self._writer(), done, failed)

    def _writer(self) -> Callable[[memoryview, StageIndex], KeptSnapshot]:
        """Keeps a copy, beside the newest whole version of all stages that this home's nodes hold."""
        held, about = frozenset(self.held()), self._about

        def write(state: memoryview, index: StageIndex) -> KeptSnapshot:
            others = held_by_others(self.store.home, about.run, about.stages)
            return write_snapshot(self.store, state, index, self._allowance, held | others, self._stop)

        return write

    def forgotten(self, stage: int) -> None:
        """The stage is not ours any more; neither is the memory for its copy, unless it is being written. A card may
        have it pinned, so that compute lets go of it first."""

        def let_go(answer: dict[str, Any] | ComputeError) -> None:
            if isinstance(answer, ComputeError) and answer.kind != "lost":  # with the process its pins are gone, too
                log.warning("the memory of stage %d's copy is not given back: %s", stage, answer.reason)
            elif stage not in self._busy:  # else the next copy has been ordered, and lies there
                self._memory.release(stage)

        if stage not in self._busy:
            self._post("snapshot_release", let_go, stage=stage)

    def _copy(
        self, stage: int, step: int | None, write: Callable[[memoryview, StageIndex], KeptSnapshot],
        done: Callable[[KeptSnapshot], None], failed: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Have the stage copied, at `step` or wherever it is, and written."""
        size = self._memory.missing(stage)
        # Copies that are ordered take their memory only when compute comes to them.
        if size and not self._fits(sum(map(self._memory.missing, {*self._busy, stage}))):
            told = f"the host has too little free memory for a copy of {size_text(size)}"
            failed(f"stage {stage} is not kept: {told}")
            return
        self._busy.add(stage)
        view = self._view()

        def copied(answer: dict[str, Any] | ComputeError) -> None:
            if self._nursery is None or isinstance(answer, ComputeError):
                if isinstance(answer, ComputeError) and (step is None or answer.kind != "lost"):
                    failed(f"stage {stage} is not kept: {answer.reason}")
                self._free(stage)
                return
            log.info("stage %d was copied within %.3f s", stage, answer["seconds"])
            index = self._about.index(stage, view, answer)
            self._nursery.start_soon(self._write, stage, partial(write, self._memory.view(stage), index), done, failed)

        self._post("snapshot_copy", copied, stage=stage, step=step)

    async def _write(
        self, stage: int, write: Callable[[], KeptSnapshot], done: Callable[[KeptSnapshot], None],
        failed: Callable[[str], None],
    ) -> None:  # fmt: skip
        in_thread: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        began = trio.current_time()
        try:
            # The thread that a cancellation leaves behind ends by `_stop`; it reads this memory until then.
            kept: KeptSnapshot = await in_thread(write, limiter=self._writing, abandon_on_cancel=True)
        except SnapshotError as error:
            result = partial(failed, str(error))
        else:
            log.info("stage %d was written within %.3f s", stage, trio.current_time() - began)
            result = partial(done, kept)
        result()
        self._free(stage)
        if stage not in self.held():
            self.forgotten(stage)

    def _free(self, stage: int) -> None:
        """Its memory may be used again, first by a save that was asked for."""
        self._busy.discard(stage)
        self._later.pop(stage, lambda: None)()

    def _kept(self, kept: KeptSnapshot) -> None:
        self._troubles.clear()
        self.on_kept()
        stage, step = str(kept.stage), str(kept.version.step)
        text = f"{spoken_stage(kept.stage)} of step {step} is kept: {size_text(kept.bytes)}"
        self._say("snapshot", text, stage=stage, step=step)

    def _warn_of_limit(self) -> None:
        """Once."""
        needed, limit = 2 * sum(map(self._memory.bytes, self.held())), self._allowance.limit_bytes
        if needed > limit and not self._warned:
            self._warned = True
            self._say(
                "snapshot",
                f"two snapshots of all that this node holds take {size_text(needed)}, and it may use "
                f"{size_text(limit)}: no newer step is kept as a whole beside the first; raise --snapshot-limit",
            )

    def _trouble(self, text: str) -> None:
        log.warning("%s", text)
        if len(self._troubles) < TROUBLES_MAX:
            self._troubles.append(text)
            self._say("snapshot", text)
