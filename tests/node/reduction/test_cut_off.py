"""Of two holders, the owner of a piece says that the other's part of it was far too large, and leaves it out."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
import trio

from ftnode.node.reduction import encoding, exchange
from ftnode.node.reduction.part_bounds import PartBounds
from tests.node.reduction.reducing import Wires, group, run, task

LIAR: Final = 1
"""Its number in the group."""
CUT_OFF: Final = 1000.0
"""Times as much of one is too much."""
COUNTS: Final = {"a": (0, 1), "b": (2, 3)}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 1024)


def reduced(sums: str, times: float = 1.0) -> dict[str, dict[str, Any]]:
    """What each of the two answers. `times`: so much larger is what a gives."""
    found: dict[str, dict[str, Any]] = {}

    async def main(wires: Wires) -> None:
        members = {name: wires.member(name) for name in COUNTS}
        for name, microbatches in COUNTS.items():
            members[name].accumulate(*microbatches)
        members["a"].stage.gradient.mul_(times)
        shares = group(*((members[name], len(COUNTS[name])) for name in COUNTS))
        for member in members.values():
            member.start(task(shares))
        for name, member in members.items():
            with trio.move_on_after(5):
                answer = await member.answer()
                found[name] = {**answer, "sum": member.summed() if not answer["fault"] else None}

    run(main, encoding=sums)
    return found


def leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = PartBounds.share

    def share(bounds: PartBounds, contributor: int) -> float:
        return 0.0 if bounds._ours == LIAR and contributor != LIAR else usual(bounds, contributor)

    monkeypatch.setattr(PartBounds, "share", share)


@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
def test_who_leaves_out_what_was_no_larger_than_its_own_is_named(sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch)
    found = reduced(sums)
    assert found["a"]["giver"].id == "b" and "cut our part" in found["a"]["fault"]
    assert "b" not in found or not found["b"]["fault"]


@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
@pytest.mark.parametrize("times", [1.0, 20.0, 40.0, 1e4])
def test_what_is_far_too_large_may_be_cut_off(sums: str, times: float) -> None:
    """What it makes of its own piece is refused for its size."""
    found = reduced(sums, times)
    assert not found["a"]["fault"]
    ((_, seen),) = found["b"]["parts"]
    assert (seen.counted < 0.01) is (times > CUT_OFF) and ("the sum that a" in found["b"]["fault"]) is (times > CUT_OFF)


def test_planted_a_share_is_taken_on_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the other's work is gone, and nobody says anything."""
    whole = reduced("exact")["a"]["sum"]
    leave_out(monkeypatch)
    monkeypatch.setattr(exchange, "least_cut_off", lambda *_: 0.0)
    found = reduced("exact")
    assert not found["a"]["fault"]
    half = len(whole) // 2
    assert np.linalg.norm(found["a"]["sum"][half:] - whole[half:]) > 0.5 * np.linalg.norm(whole[half:])
