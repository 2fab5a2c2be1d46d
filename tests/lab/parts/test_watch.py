"""The bench of watchers, at its smallest."""

from __future__ import annotations

import json
import os

import pytest

from ftnode.lab.parts import watch
from ftnode.lab.parts.watch_responders import STAGES, status_of
from ftnode.node.watch.status import decode_status, encode_status
from ftnode.protocol.words.errors import UserError


def test_what_the_responders_tell_is_a_status() -> None:
    peers = [f"peer{number}" for number in range(50)]
    found = status_of(peers[3], peers, 700)
    assert decode_status(encode_status(found)) == found
    assert len(found.peers) == len(found.stages) == 50 and len(found.summaries) == STAGES + 1


def test_both_figures_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(watch, "SETTLE_SECONDS", 0.0)
    figures = watch.run(True, peers=2, runs=1, seconds=15.0)
    assert json.loads(capsys.readouterr().out) == figures
    assert 0 < figures["cold_seconds"]["processor"] <= figures["cold_seconds"]["worst"] + 1
    assert figures["watcher_core_share"]["found"] > 0 and figures["watcher_core_share"]["bytes"] > 0
    assert "2 peers" in watch.table(figures)


def test_the_times_of_a_process() -> None:
    assert watch.cpu_seconds(os.getpid()) > 0
    with pytest.raises(UserError, match="this needs Linux"):
        watch.cpu_seconds(2**22 + 1)
