"""Who spoilt two steps in a row, and whose sum differs from that of most holders (rule 25)."""

from __future__ import annotations

import pytest

from ftnode.protocol.leader.spoilt_steps import SpoiltSteps, odd_ones
from ftnode.protocol.words.messages import Ready, StageResult
from ftnode.protocol.words.types import Attempt, Peer
from tests.protocol.situations import A, B, C, D

Step = tuple[list[Peer | None], list[Peer], bool]
"""Who named poison, who had another sum, and whether the step was skipped."""


@pytest.mark.parametrize(
    ("steps", "replaced"),
    [
        ([([B, B], [], True)], set()),
        ([([B, B], [], True), ([B, B], [], True)], {B}),
        ([([B], [], True), ([C], [], True)], set()),
        ([([B, C], [], True), ([B], [], True)], set()),
        ([([B], [], True), ([C, B], [], True)], set()),
        ([([B, None], [], True), ([B], [], True)], set()),
        ([([None], [], True), ([None], [], True)], set()),
        ([([B], [], True), ([], [], False), ([B], [], True)], set()),
        ([([B], [], True), ([], [], True), ([B], [], True)], set()),
        ([([], [C], True), ([], [C, D], True)], {C}),
        ([([], [C], True), ([], [D], True)], set()),
        ([([B], [], True), ([], [B], True)], {B}),
    ],
    ids=[
        "one step", "two steps", "by two", "another one did first", "and another one did", "a sum of a group once",
        "sums of a group", "a step counted", "a step was lost for another reason", "an odd sum", "two odd sums", "both",
    ],
)  # fmt: skip
def test_who_is_replaced(steps: list[Step], replaced: set[Peer]) -> None:
    spoilt, found = SpoiltSteps(), frozenset[Peer]()
    for step, (named, odd, skipped) in enumerate(steps, start=5):
        for peer in named:
            spoilt.name(step, peer)
        spoilt.differ(step, odd)
        found = spoilt.committed(step, skipped)
    assert found == replaced


@pytest.mark.parametrize(
    ("sums", "expected"),
    [
        ({A: "x", B: "x", C: "x"}, set()),
        ({A: "x", B: "y"}, set()),
        ({A: "x", B: "x", C: "y"}, {C}),
        ({A: "x", B: "y", C: "z"}, set()),
        ({A: "x", B: "x", C: "y", D: "y"}, set()),
        ({A: "x", B: "x", C: "x", D: "y"}, {D}),
    ],
    ids=["all alike", "two", "three", "nobody knows", "two against two", "three against one"],
)
def test_whose_sum_is_odd(sums: dict[Peer, str], expected: set[Peer]) -> None:
    readies = [
        (peer, Ready("lineage", 3, 8, Attempt(3, 1), (StageResult(1, 1.0, said),), 0.0, 1, None))
        for peer, said in sums.items()
    ]
    assert odd_ones(readies) == expected
