"""Which commits a node keeps snapshots of, and its part in keeping them.

At a commit that the manifest's `snapshot_every` divides, the compute process is told to copy the stage's state into
shared memory, between the update and whatever comes next: all stages of the swarm keep the same steps, and training
waits for a copy in memory and no more. A thread then writes it down. A stage whose last snapshot is still being written
is left out, once, and that is said; so is every other trouble. Training goes on in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as version_of
from threading import Event
from typing import Any, Final

import trio

from ftnode.models.config import ModelConfig
from ftnode.node.checkpoint import model_config
from ftnode.node.ports import ComputeError
from ftnode.node.snapshots_format import DataPosition, Lineal, SnapshotError, StageIndex, StageState
from ftnode.node.snapshots_memory import SnapshotMemory
from ftnode.node.snapshots_store import KeptSnapshot, SnapshotStore
from ftnode.node.snapshots_write import GIGABYTE, Allowance, write_snapshot
from ftnode.protocol.manifest import Manifest
from ftnode.protocol.types import Version
from ftnode.protocol.view import View

log = logging.getLogger(__name__)

TROUBLES_MAX: Final = 4
"""Said one after the other; what comes behind them is only logged, until a snapshot is kept again."""


def is_due(step: int, every: int) -> bool:
    """Step 0 is a function of the manifest, and kept by it."""
    return every > 0 and step > 0 and step % every == 0


@dataclass(frozen=True, slots=True)
class About:
    """What does not change while a node lives."""

    run: str
    stages: int
    model: ModelConfig
    corpus: str
    seed: int

    def index(self, stage: int, version: Version, view: View | None, answer: dict[str, Any]) -> StageIndex:
        """Of a stage's copy, as far as it is known before it is written."""
        lineal = Lineal("", 0, 0, 0)
        if view is not None:
            lineal = Lineal(view.lineage.id, view.lineage.forks, view.number, view.epochs[stage])
        state = StageState(float(answer["norm_squared"]), float(answer["rate_factor"]), int(answer["step_count"]))
        return StageIndex(
            self.run, stage, self.stages, version, lineal, state,
            DataPosition(self.corpus, self.seed, version.step + 1), self.model, "", {}, 0, 0.0, version_of("ftnode"),
        )  # fmt: skip


def about_of(manifest: Manifest) -> About:
    stages, data = manifest.pipeline.stages, manifest.data
    return About(manifest.run_id, stages, model_config(manifest), data.sha256, manifest.run.seed)


class NoSaver:
    """Of a node that keeps no snapshots."""

    kept: Callable[[], None]

    async def run(self) -> None:
        return

    def applied(self, stage: int, version: Version) -> None:
        return

    def forgotten(self, stage: int) -> None:
        return


class SnapshotSaver:
    """`applied` after every update. `post`: of the compute process. Nothing is kept before `run`, nor after it."""

    def __init__(
        self,
        store: SnapshotStore,
        memory: SnapshotMemory,
        post: Callable[..., None],
        about: About,
        every: int,
        allowance: Allowance,
        view: Callable[[], View | None],
        say: Callable[..., None],
    ) -> None:
        self.store, self._memory, self._post = store, memory, post
        self._about, self._every, self._allowance = about, every, allowance
        self._view, self._say = view, say
        self._busy: dict[int, Version] = {}
        """What is copied or written, by stage; a stage's memory is in use until then."""
        self._held: set[int] = set()
        self._nursery: trio.Nursery | None = None
        self._writing = trio.CapacityLimiter(1)
        """One disk: two writes at once end no sooner."""
        self._stop = Event()
        self._troubles: list[str] = []
        self.kept: Callable[[], None] = lambda: None
        """Called when a snapshot is whole."""

    async def run(self) -> None:
        """Write until cancelled; then what is half-written is dropped."""
        try:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._stop.set()

    def applied(self, stage: int, version: Version) -> None:
        """An update of this stage has been ordered, and nothing behind it yet."""
        if not is_due(version.step, self._every) or self._nursery is None:
            return
        if stage in self._busy:
            self._trouble(
                f"step {version.step} of stage {stage} is not kept: step {self._busy[stage].step} is still being "
                "written; this disk is slow for the run's recovery.snapshot_every"
            )
            return
        self._busy[stage] = version
        self._held.add(stage)
        view = self._view()
        self._post(
            "snapshot_copy", lambda answer: self._copied(stage, version, view, answer), stage=stage, step=version.step
        )

    def forgotten(self, stage: int) -> None:
        """The stage is not ours any more; neither is the memory for its copy, unless it is being written."""
        self._held.discard(stage)
        if stage not in self._busy:
            self._memory.release(stage)

    def _copied(self, stage: int, version: Version, view: View | None, answer: dict[str, Any] | ComputeError) -> None:
        if isinstance(answer, ComputeError) or self._nursery is None:
            del self._busy[stage]
            if isinstance(answer, ComputeError) and answer.kind != "lost":
                self._trouble(f"step {version.step} of stage {stage} is not kept: {answer.reason}")
            return
        log.info("stage %d of step %d was copied within %.3f s", stage, version.step, answer["seconds"])
        self._nursery.start_soon(self._write, stage, version, self._about.index(stage, version, view, answer))

    async def _write(self, stage: int, version: Version, index: StageIndex) -> None:
        began = trio.current_time()
        write = partial(
            write_snapshot, self.store, self._memory.view(stage), index, self._allowance, frozenset(self._held),
            self._stop,
        )  # fmt: skip
        in_thread: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        try:
            # The thread that a cancellation leaves behind ends by `_stop`; it reads this memory until then.
            kept: KeptSnapshot = await in_thread(write, limiter=self._writing, abandon_on_cancel=True)
        except SnapshotError as error:
            self._trouble(str(error))
        else:
            self._troubles.clear()
            self.kept()
            self._say(
                "snapshot",
                f"stage {stage} of step {version.step} is kept: {kept.bytes / GIGABYTE:.3f} GB, "
                f"{trio.current_time() - began:.1f} s",
                stage=str(stage), step=str(version.step),
            )  # fmt: skip
        del self._busy[stage]
        if stage not in self._held:
            self._memory.release(stage)

    def _trouble(self, text: str) -> None:
        log.warning("%s", text)
        if len(self._troubles) < TROUBLES_MAX:
            self._troubles.append(text)
            self._say("snapshot", text)
