"""Waiting for a swarm: with a deadline, and not in silence."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from ftnode.lab.swarms.swarm import Swarm
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story
from ftnode.node.home import waiting
from ftnode.protocol.words.errors import UserError


def test_a_long_wait_says_what_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "SAID_AFTER_SECONDS", (0.01, 600.0))
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.02)
    trial, looks = Trial(Swarm(tmp_path, tmp_path / "manifest.toml"), Story()), count()
    trial.wait("step 7", lambda story: next(looks) > 10)
    assert capsys.readouterr().err.startswith("ftnode: waits for step 7, for ")
    with pytest.raises(UserError, match="waited 0 s for step 8; 0 steps are committed") as caught:
        trial.wait("step 8", lambda story: False, 0.0)
    assert caught.value.exit_code == 75
