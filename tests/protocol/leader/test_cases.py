"""What others are asked when one of a group says that another lies, and until when (rule 50)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from ftnode.protocol.leader.cases import Cases
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.effects import Send
from ftnode.protocol.words.messages import Judge, Poisoned
from ftnode.protocol.words.types import Attempt, Peer
from tests.protocol.beginnings import begun
from tests.protocol.situations import SETTINGS, A, B, C, D, situation, view_of

VIEW: Final = view_of((A,), (B, C, D))
CHECKING: Final = replace(SETTINGS, checks=1.0)
FIRST, SECOND = Attempt(3, 8), Attempt(3, 9)


def cases() -> Cases:
    memory = LeaderMemory()
    return Cases(VIEW, memory, Losses(VIEW, memory, ViewProgress(), CHECKING))


def asked(role: Cases, sender: Peer, accused: Peer, attempt: Attempt) -> list[Peer]:
    """Who is asked when the one says it of the other."""
    said = Poisoned("lineage", 3, 8, attempt, 1, 0, "it passed on something else", accused, 1.0)
    out, begin = Outcome(), begun(attempt=attempt)
    role.accuse(situation(view=VIEW, settings=CHECKING), out, sender, said, begin, False)
    return [effect.to for effect in out if isinstance(effect, Send) and isinstance(effect.message, Judge)]


@pytest.fixture(autouse=True)
def nobody_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Situation, "new", lambda self, peers: frozenset())


def test_the_third_is_asked_once() -> None:
    role = cases()
    assert not role and asked(role, B, C, FIRST) == [D] and role.about(FIRST)
    assert asked(role, B, C, FIRST) == [] == asked(role, D, C, FIRST), "it looks at that already"


@pytest.mark.parametrize("closes", [True, False])
def test_what_others_look_at_ends_with_its_attempt(closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who was asked about it then would not be heard now."""
    if not closes:
        monkeypatch.setattr(Cases, "_close_others", lambda self, attempt: None)
    role = cases()
    assert asked(role, B, C, FIRST) == [D]
    assert asked(role, D, C, SECOND) == ([B] if closes else [])
    assert role.about(FIRST) is not closes
