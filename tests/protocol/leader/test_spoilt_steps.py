"""Who spoilt two steps in a row, and whose sum differs from that of most holders (rule 25)."""

from __future__ import annotations

import pytest

from ftnode.protocol.leader.disputes import Suspects
from ftnode.protocol.leader.spoilt_steps import SpoiltSteps, odd_ones
from ftnode.protocol.words.messages import Ready, StageResult
from ftnode.protocol.words.types import Attempt, Peer
from tests.protocol.situations import A, B, C, D

Step = tuple[list[Suspects], list[Suspects], bool]
"""Who may be to blame for poison, for another sum, and whether the step was skipped."""


def one_of(*peers: Peer, first: Peer | None = None) -> Suspects:
    return Suspects(frozenset(peers), frozenset({first} if first is not None else ()))


GROUP = one_of(B, C)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([([one_of(B)] * 2, [], True)], []),
        ([([one_of(B)] * 2, [], True)] * 2, [one_of(B)]),
        ([([one_of(B)], [], True), ([one_of(C)], [], True)], []),
        ([([one_of(B), one_of(C)], [], True), ([one_of(B)], [], True)], []),
        ([([one_of(B)], [], True), ([one_of(C), one_of(B)], [], True)], []),
        ([([one_of(B, C, first=B)], [], True)] * 2, [one_of(B, C, first=B)]),
        ([([one_of(B, C, first=B)], [], True), ([one_of(D, C, first=D)], [], True)], [one_of(C)]),
        ([([one_of(B, C, first=B), one_of(D, C, first=D)], [], True)] * 2, [one_of(C)]),
        ([([one_of(B, C, first=B)], [], True), ([one_of(B, D, first=B)], [], True)], [one_of(B, first=B)]),
        ([([one_of(B, C, first=B)], [], True), ([one_of(B, C, first=C)], [], True)], [GROUP]),
        ([([one_of(B)], [], True), ([], [], False), ([one_of(B)], [], True)], []),
        ([([one_of(B)], [], True), ([], [], True), ([one_of(B)], [], True)], []),
        ([([], [one_of(C)], True), ([], [one_of(C), one_of(D)], True)], [one_of(C)]),
        ([([], [one_of(C)], True), ([], [one_of(D)], True)], []),
        ([([], [GROUP], True)] * 2, [GROUP]),
        ([([one_of(B)], [], True), ([], [one_of(B)], True)], [one_of(B)]),
    ],
    ids=[
        "one step", "two steps", "by two", "another one did first", "and another one did", "or who gave the numbers",
        "who gave them to two", "in the same step", "two gave them to one", "each names the other",
        "a step counted", "a step was lost for another reason", "an odd sum", "two odd sums", "two sums of two", "both",
    ],
)  # fmt: skip
def test_who_is_to_blame(steps: list[Step], found: list[Suspects]) -> None:
    spoilt, last = SpoiltSteps(), list[Suspects]()
    for step, (named, odd, skipped) in enumerate(steps, start=5):
        for suspects in named:
            spoilt.name(step, suspects)
        spoilt.differ(step, odd)
        last = spoilt.committed(step, skipped)
    assert last == found


@pytest.mark.parametrize(
    ("sums", "expected"),
    [
        ({A: "x", B: "x", C: "x"}, []),
        ({A: "x", B: "y"}, [{A, B}]),
        ({A: "x", B: "x", C: "y"}, [{C}]),
        ({A: "x", B: "y", C: "z"}, [{A, B, C}]),
        ({A: "x", B: "x", C: "y", D: "y"}, [{A, B, C, D}]),
        ({A: "x", B: "x", C: "x", D: "y"}, [{D}]),
        ({A: "x", B: "x", C: "y", D: "z"}, [{C, D}]),
    ],
    ids=["all alike", "two", "three", "all differ", "two against two", "three against one", "two alike"],
)
def test_whose_sum_is_odd(sums: dict[Peer, str], expected: list[set[Peer]]) -> None:
    readies = [
        (peer, Ready("lineage", 3, 8, Attempt(3, 1), (StageResult(1, 1.0, said),), 0.0, 1, None))
        for peer, said in sums.items()
    ]
    assert odd_ones(readies) == {one_of(*peers) for peers in expected}
