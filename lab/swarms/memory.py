"""`ftnode lab memory`: resident memory of an idle node, by process.

PSS (proportional set size): a page that several processes share is counted in equal parts, so that the parts add up.
Two nodes and a meeting point run, none of them trains: a run of two stages waits for its third holder.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import mean
from typing import Any

from ftnode.lab.swarms.swarm import Process, descendants
from ftnode.lab.swarms.trial import Trial, open_trial, trial_manifest
from ftnode.node.manifests.presets import preset
from ftnode.protocol.words.errors import UserError

BUDGET_MEGABYTES = 700
QUIET_SECONDS = 5.0
"""After the nodes are up; caches of the start are given back by then."""
NODES = 2


def run(json_output: bool = False) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures in megabytes (10^6 bytes). Takes half a minute."""
    with open_trial(trial_manifest(preset("tiny"), stages=2)) as trial:
        nodes = [trial.volunteer(f"volunteer-{number + 1}") for number in range(NODES)]
        _wait_until_idle(trial, nodes)
        measured = [measure(node.process.pid) for node in nodes]
    processes = {name: mean(found.get(name, 0.0) for found in measured) for name in measured[0]}
    figures = {"processes": processes, "total": sum(processes.values()), "budget": BUDGET_MEGABYTES, "nodes": NODES}
    print(json.dumps(figures, indent=2) if json_output else table(figures))
    return figures


def _wait_until_idle(trial: Trial, nodes: list[Process]) -> None:
    """Up, and known to each other, with nothing to do."""
    names = {node.name for node in nodes}
    trial.wait("both nodes to know the view", lambda story: names <= {told.node for told, _ in story.views})
    time.sleep(QUIET_SECONDS)


def measure(pid: int) -> dict[str, float]:
    """Megabytes (PSS) of a node's process and of those below it, by what they are."""
    found: dict[str, float] = {}
    for process in (pid, *descendants(pid)):
        name = "node" if process == pid else process_kind(process)
        found[name] = found.get(name, 0.0) + pss_bytes(process) / 1e6
    return found


def process_kind(pid: int) -> str:
    """What a process of a node is: p2pd, compute, directory, or else its program. Raises OSError when it is gone."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    for known in ("p2pd", "compute", "directory"):
        if any(known in word for word in words[:4]):
            return known
    return Path(words[0]).name


def pss_bytes(pid: int) -> int:
    """Raises UserError (69) when the process is gone, or its memory cannot be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError as error:
        raise UserError(f"cannot read the memory of process {pid}: {error.strerror}; this needs Linux", 69) from error
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def table(figures: dict[str, Any]) -> str:
    lines = [f"{name:<12}{megabytes:>8.0f} MB" for name, megabytes in figures["processes"].items()]
    lines.append(f"{'together':<12}{figures['total']:>8.0f} MB  (at most {figures['budget']})")
    return "\n".join([*lines, f"PSS, mean of {figures['nodes']} idle nodes on one machine"])
