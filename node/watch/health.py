"""Whether a node of this machine is well, by what it notes and answers: for service managers and containers.

A node is well when it answers, computes, and its run moves or waits for something that is not in its hands. A run that
should move and does not is a reason to look, and perhaps to start again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from ftnode.node.owner.join_options import Running
from ftnode.node.watch.status import SwarmStatus

STEP_SECONDS_MIN: Final = 300.0
"""A step may take so long before anybody is alarmed, and STEPS times what the newest ones took."""
STEPS: Final = 10
NEWEST: Final = 20
CONNECTED: Final = ("direct", "punched", "relayed")


@dataclass(frozen=True, slots=True)
class Health:
    """Of one node: a line for a person."""

    peer: str
    healthy: bool
    text: str
    step_age: float | None = None
    """Seconds since its run was last seen to move."""
    connected: int | None = None
    """Peers; None when it did not say."""


def judge(running: Running, answer: SwarmStatus | str, computes: bool | None) -> Health:
    """`answer`: its status, or why there is none. `computes`: whether it has a compute process; None: who knows."""
    peer = running.peer
    if running.paused:
        return Health(peer, True, f"paused: {running.paused}")
    if running.leaving:
        return Health(peer, True, "was asked to leave, and hands over")
    if isinstance(answer, str):
        return Health(peer, False, f"runs as process {running.pid} and does not answer: {answer}")
    connected = sum(row.path in CONNECTED for row in answer.peers)
    if not running.run:
        waits = f"waits for {answer.waiting}" if answer.waiting else f"meeting point of {len(answer.members)} members"
        return Health(peer, not answer.waiting, waits, None, None)
    age = answer.commit_age
    healthy, text = _run(answer, age)
    if computes is False:
        healthy, text = False, f"its compute process is gone; see compute.log; {text}"
    elif not connected and len(answer.peers) > 1:
        healthy, text = False, f"connected to none of {len(answer.peers) - 1} peers; {text}"
    else:
        text = f"{text}; connected to {connected} peer{'s' if connected != 1 else ''}"
    if answer.trouble:
        text = f"{text}; waits for {answer.trouble}"
    return Health(peer, healthy, text, age, connected)


def judge_by_socket(running: Running, told: Mapping[str, Any], computes: bool | None) -> Health:
    """Of a volunteer without an address to dial. `told`: its state by its control socket, which does not say whether
    the run moves."""
    state, why = told.get("state"), str(told.get("why", ""))
    if state in ("paused", "frozen"):
        return judge(replace(running, paused=why or "by its own word"), "", None)
    if state == "leaving":
        return judge(replace(running, leaving=True), "", None)
    if state == "starting":
        return Health(running.peer, True, "answers here; it begins, or looks for its run")
    if state == "handing over":
        return Health(running.peer, True, "answers here; it hands over")
    if computes is False:
        return Health(running.peer, False, "its compute process is gone; see compute.log; it answers here")
    return Health(running.peer, True, "answers here; others reach it through a relay")


def _run(status: SwarmStatus, age: float | None) -> tuple[bool, str]:
    """Whether the run does what it should, and what that is."""
    where = f"step {status.step} of {status.steps}"
    if status.state == "finished":
        return True, f"{where}, finished"
    if status.waiting:
        return True, f"{where}, waits for {status.waiting}"
    if age is None:
        return True, f"{where}, no step is complete yet"
    seconds = [commit.seconds for commit in status.commits[-NEWEST:]]
    patience = max(STEP_SECONDS_MIN, STEPS * (median(seconds) if seconds else 0.0))
    if age > patience:
        return (
            False,
            f"{where}, and none since {age:.0f} s, where {patience:.0f} s would be long; see ftnode status",
        )
    return True, f"{where}, {age:.0f} s ago"


def has_compute(pid: int) -> bool | None:
    """Whether the process has our compute process below it; None where there is no /proc."""
    found = None
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]) != pid:
                continue
            found = found or b"ftnode.node.compute.process" in (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):  # it ended while we looked
            continue
    return found


def exit_code(found: Sequence[Health]) -> int:
    """0: all are well, 1: one is not, 69: nothing runs."""
    if not found:
        return 69
    return 0 if all(health.healthy for health in found) else 1
