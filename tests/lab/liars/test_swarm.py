"""When a liar counts as found: it went, and is not back. The trial is a fake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftnode.lab.liars import swarm
from ftnode.lab.liars.ground import ONE_EACH, Ground
from ftnode.lab.liars.kinds import KINDS
from ftnode.lab.traces.story import Story, Told
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View

V1, V2, LIAR = Peer("a", 1), Peer("b", 2), Peer("c", 3)
BEFORE = View("r", Lineage("l", 0, 3), 0, "", V1, ((V1,), (V2,), (LIAR,)), (V1, V2), (0, 0, 0), "test")
WITHOUT = replace(BEFORE, number=1, holders=((V1,), (V2,), ()))
BACK = replace(BEFORE, number=2)
BEGAN = 100.0


def run(*words: str) -> Any:
    """A step is committed each second, and the first volunteer says this about the liar after three."""
    story = Story(peers={"v1": V1, "v2": V2, "liar1": LIAR}, names={V1: "v1", V2: "v2", LIAR: "liar1"})
    story.commits = [Told("v1", {"t": BEGAN + second, "step": 20 + second}) for second in range(9)]
    story.notes = [
        Told("v1", {"t": BEGAN + 3.5, "kind": "lost", "text": text, "fields": {"peer": LIAR.id}}) for text in words
    ]
    trial: Any = SimpleNamespace(story=story, swarm=SimpleNamespace(directory=Path("/nowhere"), processes={}))
    kind = next(kind for kind in KINDS if kind.name == "only-holder-activations-largest")
    return swarm._Run(kind, Ground(ONE_EACH), trial)


def sees(monkeypatch: pytest.MonkeyPatch, view: View) -> None:
    monkeypatch.setattr(Story, "view", view)


def test_it_went_after_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run("c with stage 2 is lost (its numbers spoilt two steps in a row)")
    sees(monkeypatch, WITHOUT)
    assert seen._found(BEGAN) == 23 and seen._until(BEGAN, 20) == 23 + swarm.AFTER_STEPS


def test_one_that_is_back_is_not_found_and_has_all_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run("c with stage 2 is lost (its numbers spoilt two steps in a row)")
    sees(monkeypatch, BACK)
    assert seen._found(BEGAN) is None and seen._until(BEGAN, 20) == 20 + seen.kind.steps


@pytest.mark.parametrize("words", [(), ("c gives up stage 2 (its numbers spoilt two steps in a row)",)])
def test_one_that_nobody_let_go_is_not_found(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    seen = run(*words)
    sees(monkeypatch, WITHOUT)
    assert seen._found(BEGAN) is None
