"""A child goes with its parent, whatever ends the parent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.machine import child_processes
from ftnode.node.machine.child_processes import child_ended, ended_within, ending, kill_child, start_child, stop_child
from ftnode.protocol.words.errors import LocalError

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
PARENT = """
import sys, signal
from ftnode.node.machine.child_processes import start_child
print(start_child([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_parent_takes_its_child_along() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()

    async def gone() -> None:
        with trio.fail_after(5):
            await trio.lowlevel.wait_readable(child)

    trio.run(gone)
    os.close(child)


def test_elsewhere_the_end_of_a_child_is_noticed_without_a_descriptor_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(child_processes, "_libc", None)
    assert trio.run(child_ended, start_child([sys.executable, "-c", "import sys; sys.exit(3)"])) == 3


@pytest.mark.parametrize("frees", [False, True], ids=["for long", "for a moment"])
def test_without_descriptors_the_end_of_a_child_is_noticed_all_the_same(
    frees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals, opened = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))] * (1 if frees else 1000), os.pidfd_open

    def open_one(pid: int) -> int:
        if refusals:
            raise refusals.pop()
        return opened(pid)

    monkeypatch.setattr(os, "pidfd_open", open_one)

    async def end() -> int:
        child = start_child(SLEEPER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, child.terminate)
            with trio.fail_after(30):
                return await child_ended(child)

    assert trio.run(end) == -signal.SIGTERM
    assert not frees or not refusals


def test_output_goes_to_the_log_and_the_environment_is_added(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = start_child(
        [sys.executable, "-c", "import os, sys; print(os.environ['A'], 'HOME' in os.environ); sys.exit(3)"],
        log=log,
        environment={"A": "b"},
    )
    assert trio.run(child_ended, child) == 3
    assert log.read_text() == f"b {'HOME' in os.environ}\n"
    assert log.stat().st_mode & 0o077 == 0


def test_descriptors_are_passed_on() -> None:
    reading, writing = os.pipe()
    child = start_child([sys.executable, "-c", f"import os; os.write({writing}, b'x')"], pass_fds=[writing])
    os.close(writing)
    assert os.read(reading, 10) == b"x"
    assert child.wait() == 0
    os.close(reading)


def test_stop_terminates_and_then_kills() -> None:
    assert stop_child(start_child(SLEEPER)) == -signal.SIGTERM
    stubborn = "import signal, os; signal.signal(15, signal.SIG_IGN); os.write(1, b'x'); signal.pause()"
    reading, writing = os.pipe()
    code = f"import os; os.dup2({writing}, 1); {stubborn}"
    child = start_child([sys.executable, "-c", code], pass_fds=[writing])
    os.read(reading, 1)  # it ignores SIGTERM from here on
    assert stop_child(child, seconds=0.2) == -signal.SIGKILL
    assert stop_child(child) == -signal.SIGKILL


def test_only_the_main_thread_may_start_children() -> None:
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            start_child(SLEEPER)
        except LocalError as error:
            errors.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "exit status 3"),
        ("import os; os.kill(os.getpid(), 15)", "killed by signal 15 (SIGTERM)"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9 (SIGKILL), often for want of memory"),
        ("import time; time.sleep(60)", "it has not ended yet"),
    ],
)
def test_who_ends_by_itself_shows_how(code: str, said: str) -> None:
    async def scenario() -> int | None:
        child = start_child([sys.executable, "-c", code])
        status = await ended_within(child, 0.2 if "sleep" in code else 30.0)
        await kill_child(child)  # which is not its own end
        return status

    assert ending(trio.run(scenario)) == said


def test_others_go_on_while_a_killed_child_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """With much memory that takes the kernel seconds. It is waited for also by who is cancelled."""
    ended, child = trio.Event(), start_child(SLEEPER)

    async def in_time(process: object) -> int:
        await ended.wait()
        return await child_ended(child)

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            ended.set()

    async def end() -> None:
        found.append(await kill_child(child))

    found: list[int | None] = []
    monkeypatch.setattr(child_processes, "child_ended", in_time)
    trio.run(scenario)
    assert found == [-signal.SIGKILL]


def test_a_killed_child_that_does_not_end_is_left() -> None:
    child = start_child(SLEEPER)
    assert trio.run(kill_child, child, 0.0) is None
    assert child.wait(60) == -signal.SIGKILL


def test_a_node_has_more_descriptors_than_a_service_is_given() -> None:
    code = """if True:
        import resource
        from ftnode.node.machine.child_processes import raise_files_limit
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(4096, hard)))
        raise_files_limit()
        print(resource.getrlimit(resource.RLIMIT_NOFILE))
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    soft, hard = (int(each) for each in found.strip(" ()\n").split(","))
    assert soft == hard > 256
