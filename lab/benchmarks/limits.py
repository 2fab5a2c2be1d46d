"""`ftnode lab limits`: do the limits of a volunteer hold? Bytes on the wire, processor time and memory, all measured
from outside.

Bandwidth: two real p2pds with a proxy between them that counts what passes, TLS and acknowledgements included. One of
them has limits; bulk streams carry as much as they can in each direction, and a control stream asks for an echo four
times a second. Processor and memory: a volunteer that holds a whole run and trains as fast as it can.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import trio

from ftnode.lab.swarms.memory import process_kind
from ftnode.lab.swarms.processes import memory_of, processor_seconds
from ftnode.lab.swarms.swarm import descendants
from ftnode.lab.swarms.trial import open_trial, trial_manifest
from ftnode.node.home.identity import Identity, take_identity
from ftnode.node.links.bandwidth import Bandwidth, Gate
from ftnode.node.links.p2pd import P2pd
from ftnode.node.links.streams import STREAM_ERRORS, read_exactly, write_all
from ftnode.node.manifests.presets import preset

OFF_BY_MAX = 0.10
SINK, FEED, ECHO = "/ftnode/lab/sink/1", "/ftnode/lab/feed/1", "/ftnode/lab/echo/1"
STREAMS = 4
"""Of bulk, in each direction."""
BLOCK_BYTES = 1 << 18
ECHO_BYTES = 300
"""A heartbeat's size."""
ECHO_SECONDS = 0.25
CASES = ((20, 0), (0, 20), (2, 2), (20, 100))
"""Mbit/s up and down; 0: no limit, and nothing to carry."""
DIAL_SECONDS = 10.0
SETTLE_SECONDS = 5.0
TRAINING_SECONDS = 20.0
LOOK_SECONDS = 0.1
VRAM_BYTES = 1 << 30


@dataclass
class Line:
    """A TCP proxy on loopback, and the bytes that it carried: `up` from the limited side, `down` to it."""

    up: int = 0
    down: int = 0
    port: int = field(default=0)

    async def open(self, nursery: trio.Nursery, target: int) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]

        async def connect(near: trio.SocketStream) -> None:
            far = await trio.open_tcp_stream("127.0.0.1", target)
            async with trio.open_nursery() as both:
                both.start_soon(self._carry, near, far, True)
                both.start_soon(self._carry, far, near, False)

        nursery.start_soon(trio.serve_listeners, connect, [listener])

    async def _carry(self, source: trio.SocketStream, sink: trio.SocketStream, upwards: bool) -> None:
        try:
            while data := await source.receive_some(1 << 16):
                if upwards:
                    self.up += len(data)
                else:
                    self.down += len(data)
                await sink.send_all(data)
        except STREAM_ERRORS:
            pass
        finally:
            await trio.aclose_forcefully(sink)


def run(json_output: bool = False, seconds: float = 30.0) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures; `passed` says whether all limits hold."""
    lines = [trio.run(bandwidth, up * 1e6 / 8, down * 1e6 / 8, seconds) for up, down in CASES]
    training = trained()
    passed = all(abs(ratio - 1) <= OFF_BY_MAX for line in lines for ratio in line["ratios"].values())
    passed = passed and training["cores"] <= 1 + OFF_BY_MAX and training["compute_bytes"] <= VRAM_BYTES
    figures = {"seconds": seconds, "lines": lines, "training": training, "passed": passed}
    print(json.dumps(figures, indent=2) if json_output else table(figures))
    return figures


async def bandwidth(up: float, down: float, seconds: float) -> dict[str, Any]:
    """Bytes per second on the wire over `seconds` as ratios of the limits, and seconds of echoes meanwhile. `ahead`:
    bytes beyond the limit in the first SETTLE_SECONDS, when windows and sockets fill with what nobody has read yet."""
    line, echoes = Line(), list[float]()
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        near = await _host(stack, nursery, Bandwidth(_gate(up), _gate(down), urgent=(ECHO,)))
        far = await _host(stack, nursery, None)
        await _serve(far)
        address = next(text for text in await far.addresses() if text.startswith("/ip4/127.0.0.1/tcp/"))
        await line.open(nursery, int(address.rpartition("/")[2]))
        await near.connect(far.peer_id, [f"/ip4/127.0.0.1/tcp/{line.port}"], DIAL_SECONDS)
        nursery.start_soon(_to_the_end, _ask, await near.open(far.peer_id, ECHO, DIAL_SECONDS), echoes)
        for _ in range(STREAMS):
            if up:
                nursery.start_soon(_to_the_end, _fill, await near.open(far.peer_id, SINK, DIAL_SECONDS))
            if down:
                nursery.start_soon(_to_the_end, _drain, await near.open(far.peer_id, FEED, DIAL_SECONDS))
        await trio.sleep(SETTLE_SECONDS)
        ahead = {"up": line.up - up * SETTLE_SECONDS, "down": line.down - down * SETTLE_SECONDS}
        began, before = trio.current_time(), (line.up, line.down)
        await trio.sleep(seconds)
        took = trio.current_time() - began
        ratios = {
            name: (after - start) / took / rate
            for name, rate, start, after in (("up", up, before[0], line.up), ("down", down, before[1], line.down))
            if rate
        }
        nursery.cancel_scope.cancel()
    limits = {"up": up, "down": down}
    return {
        "limits": limits,
        "ratios": ratios,
        "ahead": {name: ahead[name] for name in ratios},
        "echo_median": median(echoes),
        "echo_worst": max(echoes),
    }


def _gate(rate: float) -> Gate | None:
    return Gate(rate) if rate else None


async def _host(stack: AsyncExitStack, nursery: trio.Nursery, limits: Bandwidth | None) -> P2pd:
    home = stack.enter_context(tempfile.TemporaryDirectory(prefix="ftnode-lab-"))
    identity: Identity = take_identity(Path(home))
    stack.callback(identity.release)
    p2pd = await P2pd.start(nursery, identity.path, bandwidth=limits)
    stack.callback(p2pd.close)
    return p2pd


async def _serve(far: P2pd) -> None:
    async def sink(_: str, stream: trio.SocketStream) -> None:
        await _drain(stream)

    async def feed(_: str, stream: trio.SocketStream) -> None:
        await _fill(stream)

    async def echo(_: str, stream: trio.SocketStream) -> None:
        while True:
            await write_all(stream, [memoryview(await read_exactly(stream, ECHO_BYTES))])

    for protocol, handler in ((SINK, sink), (FEED, feed), (ECHO, echo)):
        await far.serve(protocol, handler)


async def _to_the_end(work: Callable[..., Awaitable[None]], *args: Any) -> None:
    """A stream that breaks as everything is cancelled, since a process at one of its ends was stopped first, is no
    fault."""
    try:
        await work(*args)
    except STREAM_ERRORS:
        await trio.lowlevel.checkpoint_if_cancelled()
        raise


async def _fill(stream: trio.SocketStream) -> None:
    block = memoryview(os.urandom(BLOCK_BYTES))
    while True:
        await write_all(stream, [block])


async def _drain(stream: trio.SocketStream) -> None:
    while True:
        await read_exactly(stream, BLOCK_BYTES)


async def _ask(stream: trio.SocketStream, seconds: list[float]) -> None:
    while True:
        began = trio.current_time()
        await write_all(stream, [memoryview(bytes(ECHO_BYTES))])
        await read_exactly(stream, ECHO_BYTES)
        seconds.append(trio.current_time() - began)
        await trio.sleep(ECHO_SECONDS)


def trained(seconds: float = TRAINING_SECONDS) -> dict[str, Any]:
    """One volunteer that holds everything, with one core and 1 GiB: cores it used, threads, and its compute's peak."""
    tiny = preset("tiny")
    model = replace(tiny.model, dim=256, heads=8, layers=4, context=128, hidden=704)
    manifest = trial_manifest(replace(tiny, model=model, batch=replace(tiny.batch, sequences=2)), stages=2)
    with ExitStack() as stack:
        trial = stack.enter_context(open_trial(manifest))
        options = ("--threads", "1", "--vram", str(VRAM_BYTES >> 20) + "MiB", "--nice", "10")
        volunteer = trial.volunteer("v1", hold=3, options=options)
        trial.wait_for_step(2)
        family = (volunteer.process.pid, *descendants(volunteer.process.pid))
        before, began = {pid: processor_seconds(pid) for pid in family}, time.monotonic()
        peak = 0
        while (took := time.monotonic() - began) < seconds:
            peak = max([peak, *(own_bytes(pid) for pid in family[1:] if process_kind(pid) == "compute")])
            time.sleep(LOOK_SECONDS)
        used = {("node" if pid == family[0] else process_kind(pid)): 0.0 for pid in family}
        threads = dict.fromkeys(used, 0)
        for pid in family:
            name = "node" if pid == family[0] else process_kind(pid)
            used[name] += (processor_seconds(pid) - before[pid]) / took
            threads[name] += len(list(Path(f"/proc/{pid}/task").iterdir()))
    return {"cores": sum(used.values()), "by_process": used, "threads": threads, "compute_bytes": peak}


def own_bytes(pid: int) -> int:
    """Resident memory that a process does not share with the node: its own, and pages of libraries."""
    return memory_of(pid, "RssAnon", "RssFile")


def table(figures: dict[str, Any]) -> str:
    lines = [f"{'limit':<24}{'on the wire':>12}{'ahead':>10}{'echo, median':>14}{'worst':>9}"]
    for line in figures["lines"]:
        for name, ratio in line["ratios"].items():
            limit = f"{name} {line['limits'][name] * 8 / 1e6:g} Mbit/s"
            lines.append(
                f"{limit:<24}{ratio:>11.3f}x{line['ahead'][name] / 1e6:>7.2f} MB"
                f"{line['echo_median'] * 1e3:>11.1f} ms{line['echo_worst'] * 1e3:>6.0f} ms"
            )
    training = figures["training"]
    parts = ", ".join(f"{name} {share:.2f}" for name, share in training["by_process"].items())
    lines.append(f"--threads 1: {training['cores']:.2f} cores ({parts}); threads {training['threads']}")
    lines.append(f"--vram 1GiB: the compute process had {training['compute_bytes'] / (1 << 20):.0f} MiB at most")
    return "\n".join(lines)
