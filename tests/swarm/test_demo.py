"""`ftnode demo` as a script would use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftnode.lab.demo.report import SURVIVORS
from ftnode.lab.swarms.swarm import descendants, wait_until_gone
from ftnode.node.machine.child_processes import start_child

pytestmark = pytest.mark.timeout(240)
PARTS = ("detect_seconds", "elect_seconds", "fetch_seconds", "blend_seconds", "first_step_seconds")


FORKING = """
from ftnode.lab.swarms.template import use_template
from ftnode.node.cli.main import run_and_exit
use_template()
run_and_exit()
"""
"""The command line, whose volunteers are forks of a process that has torch loaded."""


def demo(text: Path, report: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-c", FORKING, "demo", "--data", str(text), "--report", str(report), *arguments]


def test_two_losses_are_healed_and_the_report_says_how(text: Path, tmp_path: Path) -> None:
    argv = demo(
        text, tmp_path / "report", "--stages", "3", "--steps", "14", "--kill", "2@5", "--kill", "1@10", "--json"
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "report" / "report.json").read_text())
    assert (report["steps"], report["stages"], report["volunteers"], report["audit"]) == (14, 3, 6, "passed")
    assert (report["duplicates_applied"], report["microbatches_lost"]) == (0, 0)
    assert [(entry["stage"], entry["rung"]) for entry in report["recoveries"]] == [(2, "blend"), (1, "copy")]
    for entry, kill in zip(report["recoveries"], report["kills"], strict=True):
        assert sum(entry[part] for part in PARTS) == pytest.approx(entry["outage_seconds"])
        assert min(entry[part] for part in PARTS) >= 0
        assert entry["from"] != entry["to"]
        assert 0 < kill["accumulated"] < 8
    assert report["loss_last"] < report["loss_first"]
    assert (tmp_path / "report" / "loss.png").stat().st_size > 10_000
    audited = subprocess.run(
        [sys.executable, "-m", "ftnode.node.cli", "lab", "audit", str(tmp_path / "report"), "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert audited.returncode == 0
    assert json.loads(audited.stdout)["rebuilds"] == 2
    for trace in (tmp_path / "report" / "logs").glob("*/trace.jsonl"):
        again = subprocess.run(
            [sys.executable, "-m", "ftnode.node.cli", "replay", str(trace)],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert again.returncode == 0, again.stderr[-2000:]


def test_replicas_take_a_kill_and_a_stage_without_holders_is_rebuilt(text: Path, tmp_path: Path) -> None:
    options = ("--stages", "2", "--replicas", "2", "--steps", "60", "--kill", "1@5", "--kill", "2*@40", "--json")
    argv = demo(text, tmp_path / "report", *options)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert (report["steps"], report["audit"], report["duplicates_applied"]) == (60, "passed", 0)
    kills = [(kill["stage"], kill["survivors"]) for kill in report["kills"]]
    assert kills[0] == (1, True) and set(kills[1:]) == {(2, False)}, "all of stage 2, however many there were"
    rungs = [(entry["stage"], entry["rung"]) for entry in report["recoveries"]]
    assert (1, SURVIVORS) in rungs and (2, "copy") in rungs, rungs


@pytest.mark.fresh
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process(text: Path, tmp_path: Path, number: signal.Signals) -> None:
    # Who runs these tests in the background of a shell ignores SIGINT, and so would the child.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    options = ("--data", str(text), "--report", str(tmp_path / "report"), "--stages", "2")
    process = start_child([sys.executable, "-m", "ftnode.node.cli", "demo", *options], log=tmp_path / "output")
    signal.signal(signal.SIGINT, before)
    try:
        while len(family := descendants(process.pid)) < 8:
            assert process.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.1)
        process.send_signal(number)
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert code == (130 if number == signal.SIGINT else -number)
    assert wait_until_gone(family) == ()
    assert not (tmp_path / "report" / "report.json").exists()


def test_a_demo_whose_volunteers_cannot_compute_says_why(tmp_path: Path) -> None:
    """No machine has a hundred graphics cards."""
    command = [sys.executable, "-c", FORKING, "demo", "--device", "cuda:99", "--report", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 69 and "--device cuda:99: torch finds" in said
    assert "use cpu" in said and "Traceback" not in said
