"""How long a card waits between two tasks that are both ready: the gaps in what torch's profiler saw on the stream
that tasks are computed on.

    python -m ftnode.lab.parts.gpu_idle SIZE DEVICE PRODUCTS

The compute process is a thread of this program, so that one profiler sees all of it; commands reach it by the same
socket.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from ftnode.lab.parts.gpu_process import ComputeUnderTest, prepare, step_of
from ftnode.lab.parts.gpu_sizes import CARD, MICROBATCHES, QUICK, Size
from ftnode.node.compute.process import send, serve
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.words.errors import LocalError

TASKS: Final = 2 * MICROBATCHES
WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset")
"""What a card does, as Kineto's traces name it."""
ENDS_SECONDS: Final = 30.0
MEASURED_SECONDS: Final = 120.0


def idle_seconds(size: Size, device: str, products: str) -> float:
    """Mean over the boundaries between the tasks of a step, on a card. In a process of its own, whose memory and
    profiler are gone afterwards. Raises LocalError."""
    argv = [sys.executable, "-m", "ftnode.lab.parts.gpu_idle", f"{size.name}-{size.dim}", device, products]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=MEASURED_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LocalError(f"idle time was not measured within {MEASURED_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise LocalError(f"idle time was not measured: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    return float(done.stdout)


def main() -> int:
    sizes = {f"{size.name}-{size.dim}": size for size in (*CARD, *QUICK)}
    print(_measured(sizes[sys.argv[1]], sys.argv[2], sys.argv[3]))
    return 0


def _measured(size: Size, device: str, products: str) -> float:
    import torch
    from torch.profiler import ProfilerActivity, profile

    config = size.compute_config(device, products, torch.get_num_threads())
    arena = Arena(config.slot_bytes, config.slots)
    ours, theirs = socket.socketpair()
    worker = threading.Thread(target=serve, args=(theirs, os.dup(arena.descriptor)), daemon=True)
    with theirs, ours:
        worker.start()
        send(ours, {"config": config.to_dict()})
        compute = ComputeUnderTest(ours, arena, os.getpid())
        prepare(compute, size)
        torch.cuda.synchronize(device)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            compute.carry_out(list(step_of(2))[:TASKS])
            torch.cuda.synchronize(device)
        ours.shutdown(socket.SHUT_RDWR)
        worker.join(ENDS_SECONDS)
    with tempfile.TemporaryDirectory(prefix="ftnode-lab-") as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        return between_tasks(json.loads(path.read_bytes())["traceEvents"], TASKS)


def between_tasks(events: list[dict[str, Any]], tasks: int) -> float:
    """Seconds: the mean of the longest gaps, as many as `tasks` have boundaries, on the stream that works most.
    `events`: as of a Chrome trace, in microseconds. Raises ValueError when there are too few."""
    streams: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event.get("cat") in WORK:
            begin = float(event["ts"])
            streams.setdefault(int(event["args"]["stream"]), []).append((begin, begin + float(event["dur"])))
    if not streams:
        raise ValueError("the profiler saw no work on the card")
    spans = sorted(max(streams.values(), key=lambda each: sum(end - begin for begin, end in each)))
    gaps, until = [], spans[0][1]
    for begin, end in spans[1:]:
        gaps.append(max(0.0, begin - until))
        until = max(until, end)
    if len(gaps) < tasks - 1:
        raise ValueError(f"{len(spans)} pieces of work are too few for {tasks} tasks")
    return fmean(sorted(gaps)[-(tasks - 1) :]) / 1e6


if __name__ == "__main__":
    sys.exit(main())
