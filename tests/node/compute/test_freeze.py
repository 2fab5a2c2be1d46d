"""A compute process that stands still: it keeps what it has, is not taken for a hung one, and answers later."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from ftnode.node.compute import client
from ftnode.node.compute.client import ENDED_AT_START, ComputeProcess
from ftnode.node.machine import child_processes
from ftnode.node.machine.child_processes import start_child, start_linked
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from tests.node.compute.computing import CONFIG

HANG_SECONDS = 0.3


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_frozen_is_not_hung_and_thawed_it_answers() -> None:
    config = replace(CONFIG, backend="paced")
    arena = Arena(config.slot_bytes, config.slots)
    lost: list[str] = []
    answers: list[dict[str, Any] | ComputeError] = []
    up, answered = trio.Event(), trio.Event()

    def answer(found: dict[str, Any] | ComputeError) -> None:
        answers.append(found)
        answered.set()

    async def scenario() -> None:
        process = ComputeProcess(
            config, arena, lambda ready: up.set(), lost.append, lambda stage, reason: None,
            hang_seconds=HANG_SECONDS,
        )  # fmt: skip
        process.freeze()
        process.thaw()  # before there is one, both do nothing
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            with trio.fail_after(60):
                await up.wait()
            process.freeze()
            process.post("initialise", answer, stage=1, commit="c0")
            with trio.move_on_after(4 * HANG_SECONDS):
                await answered.wait()
            assert not answered.is_set() and lost == [] and state(process.pid) == "T"
            process.thaw()
            with trio.fail_after(60):
                await answered.wait()
            assert isinstance(answers[0], dict) and lost == []
            process.freeze()
            nursery.cancel_scope.cancel()  # and one that stands still can be ended

    trio.run(scenario)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "the process ended, killed by signal 9 (SIGKILL), often for want of memory"),
        (signal.SIGSEGV, "the process ended, killed by signal 11 (SIGSEGV)"),
    ],
)
def test_who_killed_it_is_said_by_name(number: int, said: str) -> None:
    config = replace(CONFIG, backend="paced")
    lost: list[str] = []
    up, gone = trio.Event(), trio.Event()

    def told(reason: str) -> None:
        lost.append(reason)
        gone.set()

    async def scenario() -> None:
        arena = Arena(config.slot_bytes, config.slots)
        process = ComputeProcess(config, arena, lambda ready: up.set(), told, lambda stage, reason: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            with trio.fail_after(60):
                await up.wait()
                os.kill(process.pid, number)
                await gone.wait()
            nursery.cancel_scope.cancel()

    trio.run(scenario)
    assert lost == [said]


def test_one_that_cannot_start_is_told_of_by_its_own_words_alone() -> None:
    """Its exit status adds nothing, and that we end what is left of it even less."""
    config = replace(CONFIG, heads=7)

    async def scenario() -> tuple[str, bool]:
        arena = Arena(config.slot_bytes, config.slots)
        process = ComputeProcess(config, arena, lambda ready: None, lambda reason: None, lambda stage, reason: None)
        with trio.fail_after(60):
            found = await process._live()
        assert process.refusal == found[0]
        return found

    reason, worked = trio.run(scenario)
    assert reason and "exit status" not in reason and "signal" not in reason and not worked


def test_that_we_ended_one_which_hung_up_and_stayed_is_not_taken_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that gives much memory back."""

    def lingering(command: Callable[[int], list[str]], **options: Any) -> Any:
        code = "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(60)"
        return start_linked(lambda number: [sys.executable, "-c", code, str(number)], **options)

    monkeypatch.setattr(client, "start_linked", lingering)
    monkeypatch.setattr(client, "ENDING_SECONDS", 0.2)

    async def scenario() -> tuple[str, bool]:
        arena = Arena(CONFIG.slot_bytes, CONFIG.slots)
        process = ComputeProcess(CONFIG, arena, lambda ready: None, lambda reason: None, lambda stage, reason: None)
        with trio.fail_after(60):
            return await process._live()

    assert trio.run(scenario) == (ENDED_AT_START, False)


def test_retired_is_gone_for_good_and_nobody_is_told() -> None:
    config = replace(CONFIG, backend="paced")
    arena = Arena(config.slot_bytes, config.slots)
    lost: list[str] = []
    answers: list[dict[str, Any] | ComputeError] = []
    up, ended = trio.Event(), trio.Event()

    async def scenario() -> None:
        process = ComputeProcess(config, arena, lambda ready: up.set(), lost.append, lambda stage, reason: None)

        async def live() -> None:
            await process.run()
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(live)
            with trio.fail_after(60):
                await up.wait()
                process.retire()
                await ended.wait()
            assert not Path(f"/proc/{process.pid}").exists() and lost == []
            process.post("initialise", answers.append, stage=1, commit="c0")
            process.freeze()
            process.thaw()
            assert isinstance(answers[0], ComputeError) and answers[0].kind == "lost"

    trio.run(scenario)


@pytest.mark.parametrize(("onward", "hangs"), [([], True), ([2, 3], False)])
def test_a_task_of_several_stages_may_be_silent_for_as_much_longer(onward: list[int], hangs: bool) -> None:
    """Each stage takes two thirds of the time in which a process must answer, and of one alone three times as much."""
    seconds = 2 / 3 * HANG_SECONDS * (1 if onward else 3)
    config = replace(CONFIG, backend="paced", forward_seconds=seconds, backward_seconds=0.0)
    arena = Arena(config.slot_bytes, config.slots)
    lost: list[str] = []
    up = trio.Event()
    failed = False

    async def scenario() -> None:
        nonlocal failed
        process = ComputeProcess(
            config, arena, lambda ready: up.set(), lost.append, lambda stage, reason: None, hang_seconds=HANG_SECONDS
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            with trio.fail_after(60):
                await up.wait()
                for stage in (1, 2, 3):
                    await process.call("initialise", stage=stage, commit="c0")
                try:
                    await process.call(
                        "forward", stage=1, step=1, attempt=[0, 1], microbatch=0, visit=1, input=0, output=1,
                        save=True, validation=False, onward=onward,
                    )  # fmt: skip
                except ComputeError:
                    failed = True
            nursery.cancel_scope.cancel()

    trio.run(scenario)
    assert failed == hangs and bool(lost) == hangs


SLOW = r"""
import socket, sys, time
link = socket.socket(fileno=int(sys.argv[1]))

def frame(body):
    link.sendall(len(body).to_bytes(4, "big") + body)

def slowly():
    for _ in range(15):
        time.sleep(0.1)
        if sys.argv[2] == "shown":
            frame(b"\x81\xa7working\xc3")

link.recv(1 << 16)
slowly()
frame(b"\x81\xa5ready\x80")
link.recv(1 << 16)
slowly()
frame(b"\x81\xa2id\x01")
link.recv(1)
"""
"""In msgpack: {"working": True}, {"ready": {}} and {"id": 1}."""


@pytest.mark.parametrize("way", ["shown", "silent"])
def test_a_slow_disk_is_no_hang_while_it_gives_something(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, where the text is hashed, and in the first batch, for which it is read."""

    def slow(command: Callable[[int], list[str]], **options: Any) -> Any:
        return start_linked(lambda number: [sys.executable, "-S", "-c", SLOW, str(number), way], **options)

    monkeypatch.setattr(client, "start_linked", slow)
    monkeypatch.setattr(client, "START_SECONDS", 60.0 if way == "silent" else 1.0)
    answers: list[dict[str, Any] | ComputeError] = []

    async def scenario() -> None:
        arena, up, answered = Arena(CONFIG.slot_bytes, CONFIG.slots), trio.Event(), trio.Event()

        def answer(found: dict[str, Any] | ComputeError) -> None:
            answers.append(found)
            answered.set()

        process = ComputeProcess(
            CONFIG, arena, lambda ready: up.set(), lambda reason: None, lambda stage, reason: None, hang_seconds=1.0
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            with trio.fail_after(60):
                await up.wait()
                process.post("initialise", answer, stage=1, commit="c0")
                await answered.wait()
            nursery.cancel_scope.cancel()

    trio.run(scenario)
    assert isinstance(answers[0], dict) == (way == "shown")


def test_a_machine_that_cannot_start_a_process_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, backend="paced")
    arena = Arena(config.slot_bytes, config.slots)
    lost: list[str] = []
    up = trio.Event()
    failures = [OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))]
    no_descriptors = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
    sockets: list[int] = []

    def pair() -> Any:
        if no_descriptors:
            raise no_descriptors.pop()
        return socket.socketpair()

    def start(argv: list[str], **given: Any) -> Any:
        sockets.append(given["pass_fds"][0])
        if failures:
            raise failures.pop(0)
        return start_child(argv, **given)

    async def scenario() -> None:
        process = ComputeProcess(config, arena, lambda ready: up.set(), lost.append, lambda stage, reason: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            with trio.fail_after(60):
                await up.wait()
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(child_processes, "start_child", start)
    monkeypatch.setattr(child_processes, "socketpair", pair)
    trio.run(scenario)
    assert [reason.partition(":")[0] for reason in lost] == ["it cannot be started"] * 3
    assert len(set(sockets)) == 1, "the sockets of a failed start are closed"


def test_one_that_worked_and_is_restarted_is_no_failed_start() -> None:
    """Else the pause before the next one would double each time."""
    config = replace(CONFIG, backend="paced")
    arena = Arena(config.slot_bytes, config.slots)
    process: ComputeProcess

    def ready(report: dict[str, Any]) -> None:
        process.restart("to see what follows")

    process = ComputeProcess(config, arena, ready, lambda reason: None, lambda stage, reason: None)

    async def scenario() -> tuple[str, bool]:
        with trio.fail_after(60):
            return await process._live()

    reason, worked = trio.run(scenario)
    assert reason.startswith("restarted") and worked
