"""`ftnode lab gpu`: what one stage makes of a device through the compute process, against the same blocks in a plain
torch loop, at three sizes; what the process itself costs; and four nodes on one device against one process.

It is one command of at most nine minutes for whoever has a card for a moment. Without a card the same is measured on
the processor at sizes that take seconds. Sizes that do not fit into the time are left out, and said so; with a folder,
those that are done are not measured again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from ftnode.lab.parts import gpu_plain, gpu_swarm
from ftnode.lab.parts.checkpoint import Begun, begin
from ftnode.lab.parts.gpu_idle import idle_seconds
from ftnode.lab.parts.gpu_process import (
    ComputeUnderTest,
    compute_process,
    prepare,
    seconds_of,
    step_of,
)
from ftnode.lab.parts.gpu_sizes import CARD, LIVE_ACTIVATIONS, MICROBATCHES, QUICK, Size, peak_flops
from ftnode.lab.results.result_files import Kept, folder_for
from ftnode.lab.swarms.processes import memory_of
from ftnode.models.device_precision import precision_of
from ftnode.node.compute.client import COMPILE_SECONDS
from ftnode.node.compute.measure import device_name
from ftnode.node.machine.device_choice import CONTEXT_BYTES
from ftnode.protocol.words.errors import LocalError

RATIO_MIN: Final = 0.9
IDLE_SECONDS_MAX: Final = 0.3e-3
MEMORY_MOST: Final = 1.15
"""Announced memory, of what is used; at least all of it."""
EMPTY_TASKS: Final = 4000
SWARM: Final = "swarm"
"""What the row of four nodes on one device is called."""


def run(json_output: bool, device: str, quick: bool, minutes: float, folder: Path | None) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. `device`: as torch calls it. What lies in `folder` counts
    if it was measured on such a device, in the same products, with as many threads and by the same torch."""
    until = time.monotonic() + 60 * minutes
    where = torch.device(device)
    sizes = QUICK if quick or where.type != "cuda" else CARD
    products, name = precision_of(where), device_name(device)
    threads = torch.get_num_threads()
    kept = Kept(None if folder is None else folder_for(folder, "--out", empty=False))
    about = name, products, threads, str(torch.__version__)
    rows, left_out = [], []
    for size in sizes:
        if time.monotonic() > until:
            left_out.append(size.name)
            continue
        made = partial(measured, size, device, name, products, threads)
        rows.append(_kept(kept, f"{size.name}-{size.dim}", (size, *about), made))
    if time.monotonic() > until - gpu_swarm.SECONDS:
        left_out.append(SWARM)
        swarm = {"why_not": "no time was left"}
    else:
        shape = gpu_swarm.CARD if sizes is CARD else gpu_swarm.QUICK
        swarm = _kept(kept, SWARM, (shape, *about), partial(gpu_swarm.measured, shape, device, products, threads))
    begun = begin()
    result = {
        "device": name, "products": products, "threads": threads, "torch": str(torch.__version__),
        "sizes": rows, "left_out": left_out, "checkpoint": asdict(begun), "swarm": swarm,
        "passed": where.type != "cuda" or (all(map(_good, rows)) and (SWARM in left_out or gpu_swarm.good(swarm))),
    }  # fmt: skip
    if json_output:
        print(json.dumps(result, indent=2))
    else:
        Console().print(_table(result))
        print(gpu_swarm.said_of(swarm))
        print(said_of(begun))
        if left_out:
            print(f"left out for want of time: {', '.join(left_out)}; call again with --out to go on")
    return result


def said_of(begun: Begun) -> str:
    return (
        f"run init --from a checkpoint of {begun.parameters / 1e6:.0f} million parameters: {begun.seconds:.1f} s, "
        f"{begun.peak_bytes / 2**20:.0f} MiB at most"
    )


class _Unmeasured(Exception):
    """`row` says why."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(row["why_not"])
        self.row = row


def _kept(kept: Kept, part: str, decides: object, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it measured, or why it did not: that is not kept, since there may be time or memory for it another time."""

    def made() -> dict[str, Any]:
        row = measure()
        if "why_not" in row:
            raise _Unmeasured(row)
        return row

    try:
        return kept(f"gpu-{part}", decides, made)
    except _Unmeasured as unmeasured:
        return unmeasured.row


def measured(size: Size, device: str, name: str, products: str, threads: int) -> dict[str, Any]:
    """One row. A size that the device has no memory for says so."""
    low = "bfloat16" if products == "float32" else products
    try:
        through = _through_process(size, device, products, threads)
        plain = gpu_plain.plain_tokens_per_second(size, device, products)
        alone = gpu_plain.stage_task_seconds(size, device, products)
        copies = gpu_plain.copies_seconds(size, device)
        idle = idle_seconds(size, device, products) if torch.device(device).type == "cuda" else 0.0
        compiled = _compiled(size, device, products, threads)
        autocast_bytes, copy_bytes = gpu_plain.saved_bytes(size, device, low)
    except (torch.OutOfMemoryError, LocalError) as error:
        return {"size": size.name, "dim": size.dim, "why_not": str(error)[:300]}
    peak = peak_flops(name)
    if peak and "compiled_tokens_per_second" in compiled:
        compiled["compiled_mfu"] = compiled["compiled_tokens_per_second"] * size.flops_per_token / peak
    return {
        "size": size.name, "dim": size.dim, "layers": size.layers, "tokens": size.tokens, **through,
        "plain_tokens_per_second": plain,
        "ratio": through["tokens_per_second"] / plain,
        "mfu": through["tokens_per_second"] * size.flops_per_token / peak if peak else None,
        "stage_task_seconds": alone,
        "idle_seconds": idle,
        "copies_share": copies / through["task_seconds"], **compiled,
        "saved_bytes_autocast": autocast_bytes, "saved_bytes_copy": copy_bytes, "saved_in": low,
    }  # fmt: skip


def _compiled(size: Size, device: str, products: str, threads: int) -> dict[str, Any]:
    """The same with compiled blocks, on a card; what it takes to start, and why there is none."""
    if torch.device(device).type != "cuda":
        return {}
    started = time.perf_counter()
    config = replace(size.compute_config(device, products, threads), compiled=True)
    with compute_process(config, COMPILE_SECONDS) as compute:
        start = time.perf_counter() - started
        if reason := compute.ready["not_compiled"]:
            return {"not_compiled": reason}
        prepare(compute, size)
        rate, _ = _steps(compute, size)
    return {"compiled_tokens_per_second": rate, "compiled_start_seconds": start}


def _steps(compute: ComputeUnderTest, size: Size) -> tuple[float, float]:
    """Tokens a second of whole steps, and seconds of a task among tasks that are all ready."""
    tasks, moved = 0.0, 0
    started = time.perf_counter()
    for step in range(2, 2 + size.steps):
        commands = list(step_of(step))
        seconds, done = seconds_of(compute, commands[:-2])
        tasks, moved = tasks + seconds, moved + done
        compute.carry_out(commands[-2:])
    elapsed = time.perf_counter() - started
    return size.steps * MICROBATCHES * size.tokens / elapsed, tasks / moved


def _through_process(size: Size, device: str, products: str, threads: int) -> dict[str, Any]:
    """Tokens a second of whole steps, seconds of a task among tasks that are all ready, and memory."""
    free = _card_free(device)
    with compute_process(size.compute_config(device, products, threads)) as compute:
        before = memory_of(compute.pid, "VmRSS")
        _forget_peak(compute.pid)
        empty, count = seconds_of(compute, ({"op": "discard", "keep": None} for _ in range(EMPTY_TASKS)))
        prepare(compute, size)
        rate, task = _steps(compute, size)
        used = memory_of(compute.pid, "VmHWM") - before if free is None else free - (_card_free(device) or 0)
        announced = _announced(compute, free is not None)
    return {
        "tokens_per_second": rate,
        "task_seconds": task,
        "empty_tasks_per_second": count / empty,
        "announced_bytes": announced, "used_bytes": used, "announced_of_used": announced / used if used > 0 else None,
    }  # fmt: skip


def _announced(compute: ComputeUnderTest, card: bool) -> int:
    """What a node plans for one stage, and on a card for CUDA itself."""
    ready = compute.ready
    stage = int(ready["stage_bytes"]) + LIVE_ACTIVATIONS * int(ready["activation_bytes"])
    return stage + int(ready["working_bytes"]) + (CONTEXT_BYTES if card else 0)


def _card_free(device: str) -> int | None:
    """As the card itself says; None of a processor."""
    if torch.device(device).type != "cuda":
        return None
    return int(torch.cuda.mem_get_info(device)[0])


def _forget_peak(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return  # the peak is then that of the start as well


def _good(row: dict[str, Any]) -> bool:
    return (
        "why_not" not in row
        and row["ratio"] >= RATIO_MIN
        and row["idle_seconds"] < IDLE_SECONDS_MAX
        and row["announced_of_used"] is not None
        and 1 <= row["announced_of_used"] <= MEMORY_MOST
    )


def _table(result: dict[str, Any]) -> Table:
    """A column for each size."""
    table = Table(title=f"One stage on {result['device']}, products in {result['products']}, torch {result['torch']}")
    table.add_column("")
    for row in result["sizes"]:
        table.add_column(f"{row['size']} (dim {row['dim']})", justify="right")
    for name, said in FIGURES.items():
        table.add_row(name, *("" if "why_not" in row else said(row) for row in result["sizes"]))
    if any("why_not" in row for row in result["sizes"]):
        table.add_row("not measured", *(row.get("why_not", "") for row in result["sizes"]))
    return table


def _figure(row: dict[str, Any], name: str, form: str) -> str:
    """Empty where it was not measured."""
    return form.format(row[name]) if row.get(name) is not None else ""


FIGURES: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    "plain loop, tokens/s": lambda row: f"{row['plain_tokens_per_second']:,.0f}",
    "of the plain loop's": lambda row: f"{row['ratio']:.2f}",
    "MFU": lambda row: _figure(row, "mfu", "{:.1%}"),
    "compiled, tokens/s": lambda row: _figure(row, "compiled_tokens_per_second", "{:,.0f}"),
    "compiled, MFU": lambda row: _figure(row, "compiled_mfu", "{:.1%}"),
    "compiled, s until ready": lambda row: _figure(row, "compiled_start_seconds", "{:.0f}"),
    "a task, ms": lambda row: f"{1e3 * row['task_seconds']:.2f}",
    "a task by itself, ms": lambda row: f"{1e3 * row['stage_task_seconds']:.2f}",
    "idle between tasks, ms": lambda row: f"{1e3 * row['idle_seconds']:.2f}",
    "copies, of a task": lambda row: f"{row['copies_share']:.1%}",
    "memory announced, MiB": lambda row: f"{row['announced_bytes'] / 2**20:.0f}",
    "memory used, MiB": lambda row: f"{row['used_bytes'] / 2**20:.0f}",
    "empty tasks/s": lambda row: f"{row['empty_tasks_per_second']:,.0f}",
    "saved by autocast, MiB": lambda row: f"{row['saved_bytes_autocast'] / 2**20:.1f}",
    "saved with a copy, MiB": lambda row: f"{row['saved_bytes_copy'] / 2**20:.1f}",
}
"""What the table says of a size."""
