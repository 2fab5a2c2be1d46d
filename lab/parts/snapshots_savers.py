"""One process of `ftnode lab snapshots`: a state of a wanted size, saved twice and loaded once in one of the ways.

    python snapshots_savers.py WAY BYTES FOLDER

WAY is ours, dcp, dcp-stager (with staging memory that is used again, as ours is) or orbax. The first save makes what a
way makes once; the second is measured. Files are on the disk when a save counts as done. Before the load the files
leave the page cache. Prints one JSON object. Orbax needs neither torch nor the rest of ftnode here, so that it may run
in another environment: this file imports both where they are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

DIM, HEADS, HIDDEN, CONTEXT = 512, 8, 1376, 128
LAYER_PARAMETERS: Final = 4 * DIM**2 + 3 * DIM * HIDDEN + 2 * DIM
STATE_BYTES_PER_LAYER: Final = 3 * 4 * LAYER_PARAMETERS
WAYS: Final = ("ours", "dcp", "dcp-stager", "orbax")
STEP: Final = 100


def main() -> int:
    way, size, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    layers = max(1, round(size / STATE_BYTES_PER_LAYER))
    folder.mkdir(parents=True)
    try:
        saver = {"ours": Ours, "dcp": Dcp, "dcp-stager": Dcp, "orbax": Orbax}[way](layers, folder, way)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return 0
    print(json.dumps(measure(saver, folder)))
    return 0


def measure(saver: Any, folder: Path) -> dict[str, Any]:
    """Seconds and bytes. `extra`: resident memory at its highest, over what was there before the first save."""
    before = resident()
    forget_peak()
    first = timed(saver, folder / "1")
    blocking, background = timed(saver, folder / "2")
    peak = resident("VmHWM")
    wanted = saver.hash()
    saver.spoil()
    drop_cache(folder)
    started = time.perf_counter()
    saver.load(folder / "2")
    load = time.perf_counter() - started
    figures = {
        "bytes": saver.size, "blocking": blocking, "background": background, "load": load, "extra": peak - before,
        "equal": saver.hash() == wanted, "first_blocking": first[0], "first_background": first[1],
    }  # fmt: skip
    shutil.rmtree(folder)
    return figures


def timed(saver: Any, path: Path) -> tuple[float, float]:
    """Seconds until training would go on, and from then until everything is on the disk."""
    started = time.perf_counter()
    done: Callable[[], object] = saver.save(path)
    copied = time.perf_counter()
    done()
    return copied - started, time.perf_counter() - copied


class OneTensor:
    """A way whose state is a flat tensor of torch's, in `state`."""

    state: Any

    def hash(self) -> str:
        return hash_of([self.state])

    def spoil(self) -> None:
        self.state.zero_()


class Ours(OneTensor):
    """As a node does it: compute copies into shared memory, a thread of the node writes."""

    def __init__(self, layers: int, folder: Path, way: str) -> None:
        import torch

        from ftnode.models.optimiser import OptimiserConfig
        from ftnode.models.stage import Stage, StageVersion
        from ftnode.node.compute.config import ComputeConfig
        from ftnode.node.compute.pinned_places import PinnedPlaces
        from ftnode.node.compute.snapshots import SnapshotCopies, load_snapshot
        from ftnode.node.compute.state_shape import state_numbers
        from ftnode.node.machine.snapshot_memory import SnapshotMemory
        from ftnode.node.snapshots.saver import About
        from ftnode.node.snapshots.store import SnapshotStore
        from ftnode.node.snapshots.write import DiskAllowance, write_snapshot

        slot = CONTEXT * DIM * 4
        config = ComputeConfig(
            dim=DIM, heads=HEADS, layers=layers, context=CONTEXT, hidden=HIDDEN, stages=1, microbatches=1, sequences=1,
            steps=1, learning_rate=1e-3, slot_bytes=slot, slots=1,
        )  # fmt: skip
        self.model = model_of(layers)
        self.stage = Stage(self.model, 1, 1, OptimiserConfig(1e-3, 1), 1, "cpu")
        self.state = self.stage.state("all").detach()
        fill(torch, self.state)
        self.size = self.state.nbytes
        self.version = StageVersion(STEP, "c" * 24, (0, 1))
        self.stage.become(self.version, STEP, 1.0, 1.0)
        self._memory = SnapshotMemory(state_numbers(config), config.number_bytes)
        self._copies = SnapshotCopies(PinnedPlaces(self._memory, self.stage.dtype, self.stage.device))
        about = About("ab" * 16, 1, self.model, config.optimiser, "cd" * 32, 0, STEP)
        allowance = DiskAllowance(9, 10**12, 0)
        self._pool = ThreadPoolExecutor(1)
        self._kept: dict[Path, Any] = {}

        def save(path: Path) -> Callable[[], object]:
            index = about.index(1, None, self._copies.copy(self.stage, STEP))
            store = SnapshotStore(path, "ab" * 16)
            writing: Future[Any] = self._pool.submit(
                write_snapshot, store, self._memory.view(1), index, allowance, (1,)
            )

            def done() -> None:
                self._kept[path] = writing.result()

            return done

        def load(path: Path) -> None:
            load_snapshot(self.stage, config.state_plan, self._kept[path].folder, self.version)

        self.save, self.load = save, load


class Dcp(OneTensor):
    """torch.distributed.checkpoint, async_save with Gloo and one process."""

    def __init__(self, layers: int, folder: Path, way: str) -> None:
        import torch
        import torch.distributed.checkpoint

        distributed: Any = torch.distributed
        checkpoint: Any = torch.distributed.checkpoint
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        self._checkpoint = checkpoint
        entries, numbers = entries_of(layers)
        flat = torch.zeros(3 * numbers)
        fill(torch, flat)
        self.state = flat
        self.size = flat.nbytes
        self._named = {
            f"{row}.{name}": flat[at * numbers + offset :][: shape_size(shape)].view(shape)
            for at, row in enumerate(("weights", "exp_avg", "exp_avg_sq"))
            for name, (offset, shape) in entries.items()
        }
        self._more: dict[str, Any] = {}
        if way == "dcp-stager":
            staging: Any = torch.distributed.checkpoint.staging
            options = staging.StagingOptions(False, True, False, False)  # no pinned memory, which needs a device
            self._more["async_stager"] = staging.DefaultStager(options)

    def save(self, path: Path) -> Callable[[], object]:
        future: Any = self._checkpoint.async_save(self._named, checkpoint_id=path, **self._more)
        future = getattr(future, "upload_completion", future)
        return lambda: future.result()

    def load(self, path: Path) -> None:
        self._checkpoint.load(self._named, checkpoint_id=path)


class Orbax:
    """orbax-checkpoint, its asynchronous checkpointer of a flat tree of numpy arrays."""

    def __init__(self, layers: int, folder: Path, way: str) -> None:
        import numpy
        import orbax.checkpoint as checkpoint  # type: ignore[import-not-found,unused-ignore]

        self._names: dict[str, Any] = {}
        numbers = numpy.random.default_rng(1)
        for row in ("weights", "exp_avg", "exp_avg_sq"):
            for layer in range(layers):
                for name, shape in block_shapes().items():
                    self._names[f"{row}.{layer}.{name}"] = numbers.random(shape, dtype=numpy.float32)
        self.size = sum(int(array.nbytes) for array in self._names.values())
        self._checkpointer = checkpoint.AsyncCheckpointer(checkpoint.PyTreeCheckpointHandler())

    def save(self, path: Path) -> Callable[[], object]:
        self._checkpointer.save(path.absolute(), self._names)
        return lambda: self._checkpointer.wait_until_finished()

    def load(self, path: Path) -> None:
        self._names = self._checkpointer.restore(path.absolute())

    def hash(self) -> str:
        return hash_of([self._names[name] for name in sorted(self._names)])

    def spoil(self) -> None:
        self._names = {}


def model_of(layers: int) -> Any:
    from ftnode.models.config import ModelConfig

    return ModelConfig(DIM, HEADS, layers, CONTEXT, HIDDEN)


def entries_of(layers: int) -> tuple[dict[str, tuple[int, tuple[int, ...]]], int]:
    from ftnode.models.parameters import places, stage_shapes

    return places(*stage_shapes(model_of(layers), 1, 1))


def block_shapes() -> dict[str, tuple[int, ...]]:
    matrices = dict.fromkeys(("q", "k", "v", "o"), (DIM, DIM))
    return {
        **matrices, "gate": (HIDDEN, DIM), "up": (HIDDEN, DIM), "down": (DIM, HIDDEN), "norm_1": (DIM,),
        "norm_2": (DIM,),
    }  # fmt: skip


def shape_size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def fill(torch: Any, flat: Any) -> None:
    """Numbers that no file system can shrink."""
    torch.manual_seed(1)
    flat.normal_()


def hash_of(arrays: list[Any]) -> str:
    try:
        from blake3 import blake3

        found: Any = blake3()
    except ImportError:
        found = hashlib.blake2b()
    for array in arrays:
        found.update(memoryview(array.numpy() if hasattr(array, "numpy") else array).cast("B"))
    return str(found.hexdigest())


def drop_cache(folder: Path) -> None:
    """The files' pages, which are on the disk, leave the page cache; needs no right that a person has not."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def resident(field: str = "VmRSS") -> int:
    """Bytes of this process's resident memory now, or (VmHWM) at its highest; shared memory included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    sys.exit(main())
