"""The dashboard of a real swarm: opened late, through the meeting point, and watched while a stage is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.demo.kills import Planned, strike
from ftnode.lab.demo.report import recover
from ftnode.lab.swarms.trial import Trial
from ftnode.node.manifests.invitation import Invitation
from ftnode.protocol.manifest.parse import parse
from tests.swarm.conftest import OpenTrial, wait

pytestmark = pytest.mark.timeout(240)
SECONDS = 60.0
Look = dict[str, Any]


@contextmanager
def dashboard(home: Path, *options: str) -> Iterator[Callable[..., Look]]:
    """A dashboard; what it yields looks at it as a new page does. It must end by Ctrl-C."""
    command = [
        sys.executable,
        "-m",
        "ftnode.node.cli",
        "dashboard",
        "--listen",
        "127.0.0.1:0",
        "--home",
        str(home),
    ]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split(" is at ")[1].split(";")[0]

        def look(path: str = "look") -> Look:
            while True:
                try:
                    with urllib.request.urlopen(f"{url}{path}", timeout=10) as answer:
                        found: Look = json.load(answer)
                        return found
                except urllib.error.HTTPError as error:
                    if error.code != HTTPStatus.TOO_MANY_REQUESTS:
                        raise
                    time.sleep(float(error.headers["Retry-After"]))  # a public page is not asked so often

        yield look
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def steps(told: Look) -> set[int]:
    """Those that a history told of, with their tokens."""
    return {row[0] for row in told["commits"]["rows"] if row[2]}


def said(told: Look, kind: str) -> list[str]:
    return [row[4] for row in told["notes"]["rows"] if row[3] == kind]


def test_who_comes_late_sees_it_all_and_the_loss_of_a_stage_as_it_happens(
    open_swarm: OpenTrial, tmp_path: Path
) -> None:
    trial = open_swarm(volunteers=4, stages=2)
    trial.wait_for_step(20)
    with dashboard(tmp_path / "watcher", "--peer", trial.swarm.address) as look:
        told = wait(
            "the page to tell of it", look, lambda told: told["status"] is not None and steps(told) >= set(range(1, 21))
        )
        assert told["trouble"] == ""
        assert [row["stage"] for row in told["status"]["stages"]] == [0, 1, 2]
        wait("the page to tell of it", look, lambda told: bool(said(told, "found")))
        (kill,) = strike(trial.swarm, trial.story, [Planned(2, trial.story.committed + 2)])
        trial.expected_dead.add(kill.node)
        trial.wait("stage 2 to come back", lambda story: recover(story, kill) is not None, SECONDS)
        told = wait(
            "the page to tell of it",
            look,
            lambda told: any(row["seconds"] for row in (told["status"] or {}).get("recoveries", ())),
        )
        assert [row["stage"] for row in told["status"]["recoveries"]] == [2]
        told = wait("the page to tell of it", look, lambda told: bool(said(told, "lost") and said(told, "rebuild")))
        assert any("stage 2" in text for text in said(told, "lost"))
        newest = told["status"]["step"]
        wait("the page to tell of it", look, lambda told: steps(told) >= set(range(1, newest + 1)))
    tell_anyone(trial, tmp_path)


def tell_anyone(trial: Trial, folder: Path) -> None:
    """A public page of the same run has its past and its present, says how to join, and no address and no folder."""
    manifest = parse(trial.swarm.manifest.read_text())
    link = str(Invitation(manifest.run_id, manifest.run.author, (trial.swarm.address,)))
    with dashboard(folder / "public", "--public", link) as look:
        told = wait("the page to tell of it", look, lambda told: bool(steps(told) and said(told, "lost")))
        past = wait("the past to be there", partial(look, "past"), lambda past: steps(past) >= set(range(1, 21)))
        assert [row["stage"] for row in told["status"]["recoveries"]] == [2] and told["status"]["peers"]
        joining = told["public"].pop("joining")
        assert joining == {"join": f"ftnode join '{link}'", "watch": f"ftnode status '{link}'", "listed": False}
        for document in (told, past):
            text = json.dumps(document)
            for secret in ("127.0.0.1", "/ip4", "/p2p", "/tcp", str(folder), str(Path.home()), ".py", ".sock"):
                assert secret not in text, secret
