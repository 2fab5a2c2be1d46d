"""The compute process: commands in by a socket pair, answers out, in turn (table: docs/explanation/architecture.md).

    python -m ftnode.node.compute.process --socket-fd N --arena-fd M [--gradients-fd K] [--snapshots-fd L]

The first frame in is {"config": ComputeConfig as a map}, the first out {"ready": {...}}, or {"error": {...}} and the
process ends. It also ends when the socket closes, and when its card is of no use to it any more. While it reads a long
text or a snapshot it sends {"working": true} every few seconds, so that a slow disk is no hang. Tensors never cross
the socket: they lie in the arena's slots, and gradients that a group reduces in a memory of their own
(gradient_memory.py).
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgpack

from ftnode.models.faults import DiskUnreadable, Misuse, StageFault, WrongLayer
from ftnode.node.compute.config import ComputeConfig, config_from_dict
from ftnode.node.compute.state_shape import gradient_numbers, state_numbers
from ftnode.node.machine.gradient_memory import GradientMap
from ftnode.node.machine.tensor_slots import SlotMap
from ftnode.protocol.wire.length_prefix import LENGTH_BYTES, body_length, framed
from ftnode.protocol.words.errors import LocalError

FRAME_BYTES_MAX: Final = 1 << 20
COMMANDS: Final = (
    "forward", "backward", "recount", "weigh", "reduce", "reduce_open", "reduce_close", "apply", "shelve", "unshelve",
    "discard", "copy_chunk", "copy_drop", "sample_chunk", "retrace", "course",
    "initialise", "forget",
    "install_begin", "install_chunk", "install_end", "export_begin", "export_chunk", "export_end",
    "snapshot_copy", "snapshot_release", "snapshot_load",
)  # fmt: skip
WORKING_SECONDS: Final = 5.0
"""Between two signs of work: far less than the node waits for an answer (client.py)."""
FAULTS: Final = {WrongLayer: "layers", DiskUnreadable: "unreadable", Misuse: "invalid", StageFault: "fault"}
"""What a command says of what went wrong in a stage; the first that fits."""
TASKS: Final = ("forward", "backward")
"""Those that may be begun and read later."""
READS: Final = ("export_begin", "snapshot_copy", "copy_chunk", "copy_drop", "sample_chunk", "retrace", "course")
"""Those that change nothing of the stage: for want of memory they fail, and cost nobody anything."""
CARD_MEMORY: Final = "expandable_segments:True"
"""How torch takes memory of a card, read when it first does: in pieces that grow, so that none is left between tensors
of several sizes. Else it took up to 1.4 times what it needed. (torch, CUDA semantics, Memory management)"""
_log = logging.getLogger("ftnode.compute")


class Backend(Protocol):
    """Has a method for every one of COMMANDS, with its fields as arguments; they raise StageFault and Misuse."""

    def ready(self) -> dict[str, Any]: ...

    def out_of_memory(self, error: Exception) -> bool: ...

    def is_sick(self) -> bool:
        """The device carries nothing out any more, whatever it is asked for."""
        ...

    def forget(self, stage: int) -> dict[str, Any]: ...


def main() -> int:
    parser = argparse.ArgumentParser(description="torch side of a node; started by it")
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--arena-fd", type=int, required=True)
    parser.add_argument("--gradients-fd", type=int, help="without it, this process reduces in no group")
    parser.add_argument("--snapshots-fd", type=int, help="without it, this process copies no state for the disk")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s compute %(levelname)s %(message)s")
    # Ctrl-C reaches the whole group; the node decides when its children end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=options.socket_fd) as link:
        return serve(link, options.arena_fd, options.gradients_fd, options.snapshots_fd)


def serve(
    link: socket.socket, arena_descriptor: int, gradients_descriptor: int | None = None,
    snapshots_descriptor: int | None = None,
) -> int:  # fmt: skip
    """Answer commands until the other end closes; returns the exit status."""
    first = receive(link)
    if first is None:
        return 0
    backend: Backend | None = None
    try:
        config = config_from_dict(first.get("config", {}))
        step_back(config.nice)
        slots = SlotMap(arena_descriptor, config.slot_bytes, config.slots)
        os.close(arena_descriptor)
        gradients = None
        if gradients_descriptor is not None:
            gradients = GradientMap(gradients_descriptor, gradient_numbers(config), config.number_bytes)
        snapshots = (
            None
            if snapshots_descriptor is None
            else GradientMap(snapshots_descriptor, state_numbers(config), config.number_bytes)
        )
        backend = make_backend(config, slots, gradients, snapshots, signs_of_work(link, time.monotonic))
        send(link, {"ready": backend.ready()})
    except Exception as error:  # noqa: BLE001 - the edge of the process: whatever it is, the node must hear of it
        _log.exception("cannot start")
        send(link, {"error": _failure(backend, error, stage=-1)})
        return 1
    worker, more = Worker(backend), select.poll()
    more.register(link, select.POLLIN)
    while True:
        if worker.unread and not more.poll(0):
            answers = worker.finish()
        elif (command := receive(link)) is not None:
            answers = worker.take(command)
        else:
            return 0
        for answer in answers:
            send(link, answer)
        if worker.over:
            return 1


def step_back(nice: int) -> None:
    """Let other programs have the processor first: among all, and where the kernel shares it among sessions first
    (sched(7), autogroup), our session among the others. Threads begun later inherit it."""
    if nice <= os.getpriority(os.PRIO_PROCESS, 0):
        return
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def signs_of_work(link: socket.socket, clock: Callable[[], float]) -> Callable[[], None]:
    """To be called after each piece of work that may be one of many; what the node hears of it is bounded."""
    said = clock()

    def progress() -> None:
        nonlocal said
        if clock() - said >= WORKING_SECONDS:
            said = clock()
            send(link, {"working": True})

    return progress


def make_backend(
    config: ComputeConfig, slots: SlotMap, gradients: GradientMap | None = None, snapshots: GradientMap | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Backend:  # fmt: skip
    """Torch is loaded here, and only for the backend that needs it. `progress`: for what takes long by itself."""
    if config.backend == "paced":
        from ftnode.node.compute.paced_backend import PacedStages

        return PacedStages(config, slots, gradients, snapshots)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", CARD_MEMORY)
    from ftnode.node.compute.torch_backend import TorchStages

    return TorchStages(config, slots, gradients, snapshots, progress)


class Worker:
    """Carries commands out in their order, and answers them in their order.

    A card computes while we ask it for more: of two tasks that are both here the second is begun before the first is
    read. `take` and `finish` are total: a command that cannot be carried out is answered, not fatal.

    One for which there is no memory costs its stage, whose numbers may be half changed, and no other. Nothing is done
    for the stage from then on, before the node has heard of that and says `forget`.

    Some errors leave a card of no use to its process, as that of a machine that was suspended: then we are over.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lost: set[int] = set()
        """Stages for which there was no memory."""
        self._begun: tuple[dict[str, Any], Callable[[], dict[str, Any]]] | None = None
        """A task that the card computes, and what waits for its answer."""
        self.over = False
        """Nothing can be carried out any more; another process may."""

    @property
    def unread(self) -> bool:
        """A task is begun and not answered."""
        return self._begun is not None

    def take(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers that there are now; that of a task which is only begun comes with the next command, or with
        `finish`."""
        if command.get("op") not in TASKS:
            answers = self.finish()
            return [*answers, self._named(command, self._carried_out(command))]
        made = self._carried_out(command)
        answers = self.finish()
        if callable(made):
            self._begun = command, made
        else:
            answers.append(self._named(command, made))
        return answers

    def finish(self) -> list[dict[str, Any]]:
        """Wait for the task that is begun, if one is."""
        if self._begun is None:
            return []
        (command, read), self._begun = self._begun, None
        return [self._named(command, self._done(command, read))]

    def _named(self, command: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return {"id": command.get("id"), **answer}

    def _carried_out(self, command: dict[str, Any]) -> Any:
        """Its answer, or what waits for that of a task."""
        fields = {name: value for name, value in command.items() if name not in ("op", "id")}
        stage = fields.get("stage", -1)
        if command.get("op") == "forget":
            self._lost.discard(stage)
        elif lost := self._lost.intersection((stage, *fields.get("onward", ()))):
            gone = min(lost)
            return {"error": {"kind": "lost", "reason": f"what was here of stage {gone} is lost", "stage": gone}}

        def called() -> Any:
            if command.get("op") not in COMMANDS:
                raise Misuse(f"there is no command {command.get('op')}", stage)
            method = getattr(self._backend, command["op"])
            try:
                inspect.signature(method).bind(**fields)
            except TypeError as error:
                raise Misuse(f"{command['op']}: {error}", stage) from error
            return method(**fields)

        return self._done(command, called)

    def _done(self, command: dict[str, Any], do: Callable[[], Any]) -> Any:
        """What it gives, or {"error": ...}."""
        stage = command.get("stage", -1)
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - the edge of the process, as above
            if not isinstance(error, Misuse | StageFault):
                _log.exception("%s failed", command.get("op"))
            failure = _failure(self._backend, error, stage)
        if failure["kind"] == "oom" and command.get("op") in READS:
            failure["kind"] = "broken"
        elif failure["kind"] == "oom" and stage >= 0:
            # Outside of the handler, whose frames hold the stage's tensors. All other stages go on with this memory.
            self._backend.forget(stage)
            self._lost.add(stage)
        elif failure["kind"] == "broken" and self._backend.is_sick():
            failure["kind"], self.over = "lost", True
        return {"error": failure}


def _failure(backend: Backend | None, error: Exception, stage: int) -> dict[str, Any]:
    if isinstance(error, Misuse | StageFault):
        kind, stage = next(kind for fault, kind in FAULTS.items() if isinstance(error, fault)), error.stage
    elif isinstance(error, MemoryError) or (backend is not None and backend.out_of_memory(error)):
        kind = "oom"
    else:
        kind = "invalid" if isinstance(error, ValueError | TypeError | KeyError | LocalError) else "broken"
    return {"kind": kind, "reason": str(error) or type(error).__name__, "stage": stage}


def receive(link: socket.socket) -> dict[str, Any] | None:
    """The next frame but for signs of work, or None when the other end has closed. Blocks: there is nothing else to
    do."""
    while True:
        head = _read(link, LENGTH_BYTES)
        if head is None:
            return None
        body = _read(link, body_length(head, FRAME_BYTES_MAX))
        if body is None:
            return None
        frame = msgpack.unpackb(body, raw=False)
        if not isinstance(frame, dict):
            raise Misuse("a command that is no map", -1)
        if "working" not in frame:
            return frame


def send(link: socket.socket, frame: dict[str, Any]) -> None:
    body = msgpack.packb(frame, use_bin_type=True)
    try:
        link.sendall(framed(body))
    except (BrokenPipeError, ConnectionResetError):
        # The node is gone; the next `receive` says so too.
        _log.info("nobody waits for the answer")


def _read(link: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = link.recv(size - len(parts))
        except ConnectionResetError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    sys.exit(main())
