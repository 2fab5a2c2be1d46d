"""Forks of a template are the processes that were asked for, and nobody can tell but by the time that they take."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftnode.lab.swarms.swarm import descendants, wait_until_gone
from ftnode.lab.swarms.template import COMPUTE, Template, is_template, open_template, read_at_load, read_number
from ftnode.node.compute.process import receive, send
from ftnode.node.machine import child_processes
from ftnode.node.machine.child_processes import start_child, stop_child, thread_environment
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.words.errors import LocalError

BARE = (COMPUTE,)
"""Compute without torch, which is loaded for configurations that need it; so that these tests are fast."""


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_processes, "starter", None)
        made = open_template(BARE)
        yield made


@pytest.fixture
def forking(template: Template, monkeypatch: pytest.MonkeyPatch) -> Template:
    monkeypatch.setattr(child_processes, "starter", template.start)
    template.forked = 0
    return template


class Asked:
    """A compute process that was asked for, at the other end of its socket."""

    def __init__(self, log: Path | None = None, **environment: str) -> None:
        self.arena, (self.link, theirs) = Arena(64, 1), socket.socketpair()
        self.link.settimeout(60)
        argv = [sys.executable, "-m", COMPUTE, "--socket-fd", str(theirs.fileno()), "--arena-fd"]
        argv.append(str(self.arena.descriptor))
        self.argv = argv
        with theirs:
            self.child = start_child(
                argv, log=log, pass_fds=[theirs.fileno(), self.arena.descriptor], own_session=True,
                environment={**thread_environment(1), **environment},
            )  # fmt: skip

    def refuses(self) -> str:
        send(self.link, {"config": {"dim": "no number"}})
        answer = receive(self.link)
        assert answer is not None
        return str(answer["error"]["reason"])


def test_a_fork_is_a_child_with_its_own_command_line_session_and_descriptors(forking: Template, tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = Asked(log)
    assert forking.forked == 1
    of = Path(f"/proc/{asked.child.pid}")
    assert int((of / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    assert (of / "cmdline").read_bytes().rstrip(b"\0").split(b"\0") == [word.encode() for word in asked.argv]
    assert os.getsid(asked.child.pid) == asked.child.pid
    numbers = {int(entry.name) for entry in (of / "fd").iterdir()}
    assert numbers >= {0, 1, 2} and len(numbers) == 5, "what was passed on, and nothing of the template's"
    assert asked.refuses()
    assert asked.child.wait(30) == 1, "its own exit status"
    assert "cannot start" in log.read_text()


def test_a_signal_ends_it_and_its_status_says_so(forking: Template) -> None:
    asked = Asked()
    assert asked.child.poll() is None
    assert stop_child(asked.child) == -signal.SIGTERM
    assert asked.child.returncode == -signal.SIGTERM and forking.forked == 1


def test_the_environment_and_the_folder_are_those_that_were_asked_for(
    forking: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = Asked(FTNODE_ODD="yes")
    assert os.readlink(f"/proc/{asked.child.pid}/cwd") == str(tmp_path)
    asked.link.close()
    assert asked.child.wait(30) == 0, "it ends with its socket"
    assert forking.forked == 1


def test_what_is_read_when_modules_load_makes_a_process_that_is_started_anew(forking: Template) -> None:
    for environment in (
        {"OMP_NUM_THREADS": "3"}, {"PYTHONPATH": "/elsewhere"}, {"CUDA_VISIBLE_DEVICES": ""},
        {"ATEN_CPU_CAPABILITY": "default"}, {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    ):  # fmt: skip
        asked = Asked(**environment)
        asked.child.kill()
        asked.child.wait()
    assert forking.forked == 0
    assert read_at_load({"PYTHONUNBUFFERED": "1", "HOME": "/"}) == {}


def test_another_program_is_none_of_its_business(forking: Template) -> None:
    assert start_child([sys.executable, "-c", "raise SystemExit(4)"]).wait(30) == 4
    assert forking.forked == 0


def test_a_program_is_forked_where_the_template_was_opened_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "starter", None)
    made = open_template(BARE, programs=True)
    monkeypatch.setattr(child_processes, "starter", made.start)
    loaded = f"import sys; assert __name__ == '__main__' and {COMPUTE!r} in sys.modules; sys.exit(int(sys.argv[1]))"
    assert start_child([sys.executable, "-c", loaded, "4"]).wait(30) == 4
    assert start_child([sys.executable, "-c", "raise ValueError"]).wait(30) == 1
    assert made.forked == 2


PARENT = """
import signal, sys
from pathlib import Path
from ftnode.lab.swarms.swarm import Swarm
from ftnode.lab.swarms.template import open_template
from ftnode.node.machine import child_processes
child_processes.starter = open_template(["ftnode.node.cli.main"]).start
print(Swarm(Path(sys.argv[1]), Path("manifest.toml")).start_bootstrap().process.pid, flush=True)
signal.pause()
"""


def test_everything_dies_with_the_one_that_asked(tmp_path: Path) -> None:
    """The template, a node that is a fork of it, the template of that node, and what the node started."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        node = int(parent.stdout.readline())
        family, counted = below(parent.pid), descendants(parent.pid)
        templates = set(filter(is_template, family))
        assert len(templates) >= 2, "a third is about to become the directory process"
        assert node in counted and len(counted) >= 2, "p2pd, too"
        assert not templates & set(counted), "nobody counts them"
    finally:
        parent.kill()
        parent.wait()
    assert wait_until_gone(family) == ()


def below(pid: int) -> list[int]:
    """Like `descendants`, with templates."""
    found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(grandchild for child in found for grandchild in below(child))]


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1024, reason="no descriptor is above 1,023")
def test_a_process_with_many_open_files_can_ask_as_well() -> None:
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 1024)
    os.write(writing, (4711).to_bytes(4, "big"))
    os.close(writing)
    try:
        assert read_number(high, 1.0) == 4711
    finally:
        os.close(reading)
        os.close(high)


def test_a_template_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "starter", None)
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(child_processes, "starter", Template(ours, os.environ).start)
    theirs.close()
    with pytest.raises(LocalError, match="the template does not answer"):
        Asked()
