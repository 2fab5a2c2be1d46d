"""The owner of a machine and a real node on it: pauses, resumes, signals, terminals that close, and kills."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.swarms.swarm import Process, descendants, wait_until_gone
from ftnode.lab.swarms.trial import Trial, small_manifest
from ftnode.node.cli.manifest import manifest_text
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.machine.child_processes import is_running
from ftnode.node.owner.join_options import running_nodes
from tests.swarm.conftest import WAIT_SECONDS, OpenTrial, wait

pytestmark = pytest.mark.timeout(240)

FREE_SECONDS = 2.0
"""After the hand-over, for the memory to be free."""
HAND_OVER_SECONDS = 30.0
"""A node that pauses goes without handing over then, so that it rests within WAIT_SECONDS, however slow all others
are."""


@pytest.fixture(autouse=True)
def hears_hang_ups() -> Iterator[None]:
    """Nodes inherit what their starter ignores: under nohup, as a build may run, they would not hear a hang-up."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def command(*arguments: object) -> str:
    argv = [sys.executable, "-m", "ftnode.node.cli", *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def told(process: Process) -> str:
    return process.output.read_text(errors="replace")


def again(trial: Trial, process: Process, life: int) -> str:
    """Follow the trace of a node's next life; its name in the story."""
    name = f"{process.name}-{life}"
    trial.story.follow(name, process.log / f"trace-{life}.jsonl")
    return name


def works(trial: Trial, name: str) -> None:
    """It has counted a microbatch, and so contributes."""
    trial.wait(f"{name} to count a microbatch", lambda story: any(node == name for node, _ in story.accumulated))


def both_hold_something(trial: Trial) -> None:
    trial.wait("both to hold something", lambda story: story.view is not None and len(story.view.members()) == 2)
    trial.wait_for_step(trial.story.committed + 2)


def test_a_pause_frees_the_machine_and_a_resume_joins_again(open_swarm: OpenTrial) -> None:
    """Of the one that leads, so that somebody else has to lead meanwhile."""
    trial = open_swarm(volunteers=2, stages=1, hold=2)
    both_hold_something(trial)
    process = trial.swarm.processes[trial.story.names[trial.story.view.leader]]  # type: ignore[union-attr]
    family = descendants(process.process.pid)
    assert len(family) >= 3, "compute, directory, p2pd"
    paused = json.loads(command("pause", "--home", process.home, "--json"))
    assert list(paused["paused"]) == [running_nodes(process.home)[0].peer] and paused["running"] == []
    assert wait_until_gone(family, FREE_SECONDS) == ()
    assert process.alive and descendants(process.process.pid) == ()
    assert "memfd:ftnode-tensors" not in Path(f"/proc/{process.process.pid}/maps").read_text()
    trial.story.read()
    trial.wait_for_step(trial.story.committed + 3, WAIT_SECONDS)
    assert trial.story.view is not None and process.name not in map(trial.story.name, trial.story.view.members())
    assert "until ftnode resume" in running_nodes(process.home)[0].paused

    assert "goes on" in command("resume", "--home", process.home)
    works(trial, again(trial, process, 2))
    assert running_nodes(process.home)[0].paused == ""


def test_who_is_alone_in_a_run_stands_still_and_loses_nothing(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=1, stages=2, hold=3)
    process = trial.swarm.processes["v1"]
    family = descendants(process.process.pid)
    paused = json.loads(command("pause", "1h", "--home", process.home, "--json"))
    assert paused["paused"] and "stays in memory" in running_nodes(process.home)[0].paused

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    assert "T" in {state(pid) for pid in family}
    trial.story.read()
    step = trial.story.committed
    time.sleep(1.5)
    trial.story.read()
    assert trial.story.committed <= step + 1, "at most what was on its way"
    assert "goes on" in command("resume", "--home", process.home)
    trial.wait_for_step(step + 5, WAIT_SECONDS)
    assert descendants(process.process.pid) == family, "nothing was started anew"
    assert told(process).count("  join ") == 1
    paused = json.loads(command("pause", "--now", "--home", process.home, "--json"))
    assert paused["paused"] and wait_until_gone(family, FREE_SECONDS) == () and process.alive


def test_when_both_pause_at_once_one_stays_with_all_of_it(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=2, stages=1, hold=2)
    both_hold_something(trial)
    processes = [trial.swarm.processes[name] for name in ("v1", "v2")]
    argv = [sys.executable, "-m", "ftnode.node.cli", "pause", "--json", "--home"]
    asked = [subprocess.Popen([*argv, str(process.home)], stdout=subprocess.PIPE) for process in processes]
    assert [each.wait(90) for each in asked] == [0, 0]
    notes = [running_nodes(process.home)[0].paused for process in processes]
    assert sorted("stays in memory" in note for note in notes) == [False, True], notes
    trial.story.read()
    step = trial.story.committed
    assert step > 2
    for number, process in enumerate(processes):
        assert "goes on" in command("resume", "--home", process.home)
        if "stays in memory" not in notes[number]:
            again(trial, process, 2)
    trial.wait_for_step(step + 3, WAIT_SECONDS)
    assert not [told for told in trial.story.installed if told.record["rung"] not in ("initial", "replica")]


def test_a_closed_terminal_and_an_impatient_owner(open_swarm: OpenTrial) -> None:
    """SIGHUP hands over as SIGTERM does, and comes twice; Ctrl-C twice ends at once."""
    trial = open_swarm(volunteers=2, stages=1, hold=2)
    both_hold_something(trial)
    one, other = trial.swarm.processes["v2"], trial.swarm.processes["v1"]
    trial.expected_dead |= {"v1", "v2"}
    one.process.send_signal(signal.SIGHUP)
    one.process.send_signal(signal.SIGHUP)
    assert one.process.wait(WAIT_SECONDS) == 0 and "once more ends at once" in told(one)
    trial.story.read()
    trial.wait_for_step(trial.story.committed + 3, WAIT_SECONDS)
    assert trial.story.view is not None and trial.story.view.holders[0] == trial.story.view.holders[1], "handed over"
    family = descendants(other.process.pid)
    other.process.send_signal(signal.SIGINT)
    other.process.send_signal(signal.SIGINT)
    assert other.process.wait(10) == 0 and wait_until_gone(family, FREE_SECONDS) == ()


FAKE_NVML = """
import os
from pathlib import Path
from types import SimpleNamespace

class NVMLError(Exception):
    pass

def nvmlInit(): ...
def nvmlShutdown(): ...
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetTemperature(handle, sensor): return 50
def nvmlDeviceGetComputeRunningProcesses(handle):
    ours = [each for each in Path("/proc").glob("[0-9]*/cmdline") if b"\\0ftnode.node.compute.process\\0" in read(each)]
    found = [int(each.parent.name) for each in ours]
    found += [int(pid) for pid in Path(os.environ["FAKE_GPU"]).read_text().split()]
    return [SimpleNamespace(pid=pid) for pid in found]
def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
"""
"""A GPU on which all compute processes of nodes and those in a file compute."""


def test_a_program_on_the_gpu_comes_first(
    open_swarm: OpenTrial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paced compute needs no GPU, and NVML is faked: the programs and the pause are real."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pynvml.py").write_text(FAKE_NVML)
    users = tmp_path / "users"
    users.write_text("")
    trial = open_swarm(volunteers=0, stages=1)
    trial.volunteer("v1", hold=2)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fake'}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("FAKE_GPU", str(users))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    options = ("--device", "cuda", "--pause-for-gpu", "--hand-over", str(HAND_OVER_SECONDS))
    process = trial.volunteer("v2", hold=2, options=options)
    both_hold_something(trial)
    game = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert "paused" not in told(process), "its own compute process and that of another node are no reason"
        users.write_text(str(game.pid))
        wait("it to see the game", lambda: told(process), lambda said: "uses the GPU" in said)
        (rests,) = wait(
            "it to rest", lambda: running_nodes(process.home), lambda nodes: "uses the GPU" in nodes[0].paused
        )
        assert "stays in memory" not in rests.paused, "it had nobody to hand over to"
        assert descendants(process.process.pid) == () and process.alive
        trial.story.read()
        trial.wait_for_step(trial.story.committed + 3, WAIT_SECONDS)
    finally:
        game.kill()
        game.wait()


# -- a node that rests from the start, which needs no swarm


def own_terminal() -> None:
    """Standard input becomes the terminal of this new session, whose end is told by SIGHUP."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Resting:
    """`ftnode join` of a home, whose only peer does not exist."""

    def __init__(self, folder: Path, manifest: Path, text: Path) -> None:
        self.home, self.manifest, self.text = home_directory(str(folder / "home")), manifest, text
        stranger = take_identity(home_directory(str(folder / "stranger")))
        stranger.release()
        self.peer = f"/ip4/127.0.0.1/tcp/1/p2p/{stranger.peer_id}"
        self.log = folder / "output.log"
        self.started: list[subprocess.Popen[bytes]] = []

    def join(self, *options: object, terminal: int | None = None) -> subprocess.Popen[bytes]:
        """With `terminal`, the slave's end of one, that is where it runs."""
        argv = [
            sys.executable, "-m", "ftnode.node.cli", "join", str(self.manifest), "--allow-unsigned", "--peer",
            self.peer, "--data", str(self.text), "--home", str(self.home), "--run-on-battery", "--share-gpu",
            *map(str, options),
        ]  # fmt: skip
        with self.log.open("wb") as output:
            process = subprocess.Popen(
                argv, stdin=terminal, stdout=output if terminal is None else terminal, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=None if terminal is None else own_terminal,
            )  # fmt: skip
        self.started.append(process)
        wait("it to rest", lambda: self.note(process), seconds=30)
        return process

    def note(self, process: subprocess.Popen[bytes]) -> str:
        assert process.poll() is None, self.log.read_text()
        return next((node.paused for node in running_nodes(self.home) if node.pid == process.pid), "")


@pytest.fixture
def resting(tmp_path: Path, text: Path) -> Iterator[Resting]:
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(manifest_text(small_manifest(text, 2, 100)))
    made = Resting(tmp_path, manifest, text)
    yield made
    for process in made.started:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait(10)


@pytest.mark.parametrize(
    "numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT, signal.SIGINT]], ids=str
)
def test_a_home_that_was_paused_starts_paused_and_ends_when_it_is_told(resting: Resting, numbers: list[int]) -> None:
    assert "starts paused" in command("pause", "2h", "--home", resting.home)
    process = resting.join()
    said = resting.log.read_text()
    assert "paused" in said and "ftnode resume goes on" in said
    assert descendants(process.pid) == ()
    for number in numbers:
        with suppress(ProcessLookupError):
            process.send_signal(number)
    assert process.wait(10) == 0
    assert running_nodes(resting.home) == () and not list((resting.home / "running").glob("*.sock"))


def test_an_owner_who_presses_again_and_again(resting: Resting) -> None:
    """At whatever moment of its end: it ends clean, as it would have."""
    command("pause", "--home", resting.home)
    process = resting.join()
    while process.poll() is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    assert process.returncode == 0 and running_nodes(resting.home) == ()


def test_a_terminal_that_is_really_closed(resting: Resting) -> None:
    command("pause", "--home", resting.home)
    master, slave = pty.openpty()
    process = resting.join(terminal=slave)
    os.close(slave)
    os.close(master)
    assert process.wait(10) == 0 and running_nodes(resting.home) == ()


def typed_at(master: int) -> bytes:
    """What a terminal has got until nothing more comes."""
    found = b""
    with suppress(OSError):  # the other end was closed
        while select.select([master], [], [], 0.5)[0]:
            found += os.read(master, 1 << 16)
    return found


@pytest.mark.parametrize("options", [(), ("--quiet",), ("--json",), ("--log-format", "json")], ids=str)
def test_the_live_line_of_a_terminal(
    resting: Resting, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """It is redrawn in place, Ctrl-C leaves nothing of it, and who does not want it gets no control characters."""
    monkeypatch.setenv("TERM", "xterm")
    command("pause", "--home", resting.home)
    master, slave = pty.openpty()
    process = resting.join(*options, terminal=slave)
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + 30
    while not options and b"\r\x1b[Jpaused: " not in shown and time.monotonic() < deadline:
        shown += typed_at(master)  # the first line was drawn when there was nothing to erase
    os.write(master, b"\x03")
    assert process.wait(10) == 0
    said = (shown + typed_at(master)).decode()
    assert ("\x1b" in said) == ("\x1b[Jpaused: " in said) == (not options)
    assert not options or "paused" in said
    assert options or said.endswith("\r\x1b[J"), "nothing is left of the line"
    os.close(master)


def test_killed_while_paused_it_is_still_paused(resting: Resting) -> None:
    command("pause", "--home", resting.home)
    first = resting.join()
    first.kill()
    first.wait(10)
    second = resting.join()
    assert "until ftnode resume" in resting.note(second)
    assert "has left" in command("leave", "--home", resting.home) and second.wait(10) == 0


def test_a_pause_that_is_over_ends_by_itself_and_hours_are_kept(resting: Resting) -> None:
    now = time.localtime()
    hours = f"{(now.tm_hour + 2) % 24:02}:00-{(now.tm_hour + 3) % 24:02}:00"
    process = resting.join("--schedule", hours)
    assert "outside of --schedule, until" in resting.note(process)
    held: dict[str, Any] = json.loads(command("resume", "--home", resting.home, "--json"))
    assert next(iter(held["paused"].values())).startswith("outside of --schedule")
    process.terminate()
    assert process.wait(10) == 0
    command("pause", "20s", "--home", resting.home)
    process = resting.join()
    wait("the node to begin", resting.log.read_text, lambda said: "joins trial" in said)
    assert len(descendants(process.pid)) >= 1 and is_running(process.pid)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


def test_the_socket_is_the_owners_alone(resting: Resting) -> None:
    command("pause", "--home", resting.home)
    resting.join()
    (path,) = (resting.home / "running").glob("*.sock")
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_uid == os.getuid()
    assert json.loads(command("pause", "--home", resting.home, "--json"))["running"] == []
