"""Who is well: a table of what a node notes and answers; and the command on a real meeting point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.node.home.identity import BOOTSTRAP_NAME, take_identity
from ftnode.node.machine.child_processes import is_running
from ftnode.node.owner.join_options import Running, note_running
from ftnode.node.watch.health import Health, exit_code, has_compute, judge, judge_by_socket
from ftnode.node.watch.status import CommitPoint, Member, PeerRow, Speaker, SwarmStatus
from tests.node.cli.cli_runner import Seen
from tests.node.life.volunteers import starting

RUNNING = Running(os.getpid(), "12D3KooWnode", "ab" * 32, ("/ip4/127.0.0.1/tcp/1/p2p/12D3KooWnode",))
POINT = replace(RUNNING, run="")


def row(path: str) -> PeerRow:
    return PeerRow("12D3KooWother", "holder", (1,), (), path, 0.01, "0.1.0", 1.0)


STATUS = SwarmStatus(
    Speaker("12D3KooWnode", "0.1.0", "cpu", "volunteer"), run="ab" * 32, step=7, steps=100, state="training",
    commit_age=3.0, commits=tuple(CommitPoint(step, 2.0, 5.0) for step in range(1, 8)),
    peers=(row("self"), row("direct"), row("relayed"), row("none")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("running", "answer", "computes", "healthy", "text"),
    [
        (RUNNING, STATUS, True, True, "step 7 of 100, 3 s ago; connected to 2 peers"),
        (RUNNING, STATUS, None, True, "step 7 of 100, 3 s ago"),
        (RUNNING, STATUS, False, False, "its compute process is gone"),
        (RUNNING, "too slow", True, False, "does not answer: too slow"),
        (RUNNING, replace(STATUS, commit_age=301.0), True, False, "none since 301 s"),
        (RUNNING, replace(STATUS, commit_age=299.0), True, True, "299 s ago"),
        (RUNNING, replace(STATUS, commits=(CommitPoint(7, 2.0, 60.0),), commit_age=500.0), True, True, "500 s ago"),
        (RUNNING, replace(STATUS, commits=(CommitPoint(7, 2.0, 60.0),), commit_age=601.0), True, False, "600 s would"),
        (RUNNING, replace(STATUS, commit_age=900.0, waiting="stage 2"), True, True, "waits for stage 2"),
        (RUNNING, replace(STATUS, commit_age=900.0, state="finished"), True, True, "finished"),
        (RUNNING, replace(STATUS, trouble="its directory to be back"), True, True, "waits for its directory"),
        (RUNNING, replace(STATUS, commit_age=None, step=0), True, True, "no step is complete yet"),
        (RUNNING, replace(STATUS, peers=(row("self"), row("none"))), True, False, "connected to none of 1 peers"),
        (RUNNING, replace(STATUS, peers=(row("self"),)), True, True, "connected to 0 peers"),
        (replace(RUNNING, paused="until 07:00"), "", None, True, "paused: until 07:00"),
        (replace(RUNNING, leaving=True), "", None, True, "hands over"),
        (POINT, SwarmStatus(STATUS.speaker), None, True, "meeting point of 0 members"),
        (POINT, SwarmStatus(STATUS.speaker, waiting="the directory to start"), None, False, "waits for the directory"),
        (POINT, "refused", None, False, "does not answer: refused"),
        (POINT, SwarmStatus(STATUS.speaker, members=(Member("a", "b", "c", ()),)), None, True, "of 1 members"),
    ],
)  # fmt: skip
def test_a_verdict_follows_from_what_is_known(
    running: Running, answer: SwarmStatus | str, computes: bool | None, healthy: bool, text: str
) -> None:
    found = judge(running, answer, computes)
    assert found.healthy == healthy and text in found.text and "\n" not in found.text


@pytest.mark.parametrize(
    ("told", "computes", "healthy", "text"),
    [
        ({"state": "running"}, True, True, "answers here; others reach it through a relay"),
        ({"state": "running"}, None, True, "answers here"),
        ({"state": "running"}, False, False, "its compute process is gone"),
        ({"state": "starting"}, False, True, "it begins"),
        ({"state": "handing over"}, False, True, "hands over"),
        ({"state": "leaving"}, False, True, "was asked to leave"),
        ({"state": "frozen", "why": "until 07:00"}, False, True, "paused: until 07:00"),
        ({"state": "paused"}, False, True, "paused: by its own word"),
    ],
)
def test_without_an_address_its_socket_counts(
    told: Mapping[str, str], computes: bool | None, healthy: bool, text: str
) -> None:
    found = judge_by_socket(replace(RUNNING, addresses=()), told, computes)
    assert found.healthy == healthy and text in found.text and "\n" not in found.text


def test_one_that_is_not_well_is_enough() -> None:
    well, ill = Health("a", True, ""), Health("b", False, "")
    assert [exit_code(found) for found in ([well], [well, ill], [])] == [0, 1, 69]


def test_a_compute_process_is_found_below_its_node() -> None:
    name = "ftnode.node.compute.process"
    child = subprocess.Popen([sys.executable, "-c", "input()", name], stdin=subprocess.PIPE)
    try:
        assert has_compute(os.getpid()) is True
    finally:
        child.communicate(b"\n")
    assert not has_compute(os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc/PID/comm to write to")
def test_a_process_may_have_a_name_that_is_no_text() -> None:
    code = "from pathlib import Path; Path('/proc/self/comm').write_bytes(b'\\xff\\xfe'); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        assert has_compute(os.getpid()) is False and is_running(child.pid)
    finally:
        child.communicate(b"\n")


def test_nothing_runs(ftnode: Callable[..., Seen], tmp_path: Path) -> None:
    seen = ftnode("health", "--home", tmp_path)
    assert seen.code == 69 and "no node runs here" in seen.err and seen.err.count("\n") == 1
    told = ftnode("health", "--home", tmp_path, "--json")
    assert told.code == 69 and json.loads(told.out) == {"format": 1, "healthy": False, "nodes": []}


def test_a_node_that_runs_and_does_not_answer_is_not_healthy(ftnode: Callable[..., Seen], tmp_path: Path) -> None:
    identity = take_identity(tmp_path)
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{identity.peer_id}"
    note_running(tmp_path, Running(os.getpid(), identity.peer_id, "ab" * 32, (address,)))
    try:
        seen = ftnode("health", "--home", tmp_path, "--timeout", 5)
    finally:
        identity.release()
    assert seen.code == 1 and "does not answer" in seen.out and seen.out.count("\n") == 1


RELAYED = """
import os, sys, trio
from pathlib import Path
from ftnode.node.owner.join_options import Running, note_running
from ftnode.node.owner.control_socket import ControlServer, socket_path
from ftnode.node.home.identity import take_identity
home, me = Path(sys.argv[1]), take_identity(Path(sys.argv[1])).peer_id
async def state(question):
    return {"state": sys.argv[2]}
server = ControlServer(socket_path(home, me), {"state": state})
note_running(home, Running(os.getpid(), me, "run", ()))
print(me, flush=True)
trio.run(server.run)
"""
"""A volunteer that listens nowhere, in the state that it is told."""


def test_who_is_reached_through_a_relay_only_is_asked_by_its_socket(
    ftnode: Callable[..., Seen], tmp_path: Path
) -> None:
    with starting(RELAYED, tmp_path) as start:
        peer, process = start("running")
        seen = ftnode("health", "--home", tmp_path)
        assert seen.code == 0 and seen.out == f"healthy: {peer[-6:]} answers here; others reach it through a relay\n"
        process.send_signal(signal.SIGSTOP)
        silent = ftnode("health", "--home", tmp_path, "--timeout", 0.3)
        assert silent.code == 1 and silent.out.startswith("not healthy: ") and "does not answer" in silent.out


def test_a_meeting_point_is_a_node_too(ftnode: Callable[..., Seen], tmp_path: Path) -> None:
    """Its identity has another file than a volunteer's."""
    identity = take_identity(tmp_path, BOOTSTRAP_NAME)
    note_running(tmp_path, Running(os.getpid(), identity.peer_id, "", ()))
    try:
        assert ftnode("health", "--home", tmp_path).code == 1
        assert f"{identity.peer_id}  runs now: meeting point" in ftnode("id", "--home", tmp_path).out
    finally:
        identity.release()
    assert ftnode("health", "--home", tmp_path).code == 69


def test_it_loads_neither_torch_nor_hivemind() -> None:
    loaded = "print({'torch', 'hivemind', 'libp2p'} & set(sys.modules))"
    code = f"import sys, ftnode.node.cli.health, ftnode.node.watch.health; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
