"""What a participant remembers of the run, and what one that comes late is told of the time before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from ftnode.protocol.chronicle import BEFORE_US, ENTRIES_KEPT, REBUILDS_KEPT, Chronicle
from ftnode.protocol.wire import frames
from ftnode.protocol.wire.admission import credible
from ftnode.protocol.words.messages import Begin, Commit, Donor, Plan
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Recovered, Rung, Version
from ftnode.protocol.words.view import Lineage, View

A, B, C = Peer("a", 1), Peer("b", 1), Peer("c", 1)
VIEW = View("r", Lineage("one", 0, 3), 3, "", A, ((A,), (B,), (C,)), (A, B, C), (0, 2, 3), "")
SETTINGS = Settings(run="r", stages=2, steps=20_000, microbatches=2, window=2)


def commit(step: int, *recoveries: Recovered) -> Commit:
    return Commit(step, 5.0 / step, 64, 0.5, False, (1.0, 1.0, 1.0), recoveries)


def begin(step: int, *installs: Plan) -> Begin:
    base = Version(step - 1, "c", Attempt(2, step - 1))
    return Begin(
        "one", 3, step, Attempt(3, 1), base, False, False, True, False, 2, ((A, (0, 1)),), (), installs, (), ()
    )  # fmt: skip


def lost(step: int, now: float = 10.0) -> Chronicle:
    """Stage 2 is lost in `step` and rebuilt by c."""
    chronicle = Chronicle()
    plan = Plan(2, C, Rung.COPY, (Donor(1, B, ()),), 1.1, "its neighbour", None)
    chronicle.begin(begin(step, plan), VIEW, now)
    return chronicle


def test_losses_around_a_rebuild() -> None:
    """The last validation before the interrupted step, and that step's own."""
    chronicle = lost(7)
    (rebuild,) = chronicle.rebuilds.values()
    assert chronicle.around(rebuild) == (None, None)
    chronicle.evaluate(3, 4.0)
    chronicle.evaluate(5, 3.0)
    chronicle.evaluate(8, 2.0)
    assert chronicle.around(rebuild) == (3.0, None)
    chronicle.evaluate(7, 3.5)
    assert chronicle.around(rebuild) == (3.0, 3.5)


class Unwalked(dict[int, float]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("whoever asks for a status has this looked for once for each rebuild")


def test_losses_around_a_rebuild_are_found_among_many_without_a_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftnode.protocol.chronicle.ENTRIES_KEPT", 40)
    chance, chronicle, known = Random(1), lost(7), dict[int, float]()
    (rebuild,) = chronicle.rebuilds.values()
    for number in range(300):
        step, after = chance.randrange(1, 100), chance.randrange(40, 200)
        if number % 25:
            chronicle.evaluate(step, float(number))
            known[step] = float(number)
            known = {step: known[step] for step in sorted(known)[-40:]}
        else:
            chronicle.forget(after)
            known = {step: loss for step, loss in known.items() if step <= after}
        assert chronicle.validation == known
        chronicle.validation = Unwalked(known)
        for at in (0, 1, 30, step, 100):
            before = [known[earlier] for earlier in sorted(known) if earlier < at]
            told = chronicle.around(replace(rebuild, step=at))
            assert told == (before[-1] if before else None, known.get(at))
        chronicle.validation = dict(known)


@pytest.mark.parametrize(
    ("evaluated", "unscored", "step", "every", "owed"),
    [
        ((), -1, 4, 5, False),
        ((), -1, 5, 5, True),
        ((), -1, 6, 5, True),  # the one of step 5 was put off
        ((5,), -1, 6, 5, False),
        ((5,), -1, 10, 5, True),
        ((5,), 10, 10, 5, False),  # it gave no finite loss
        ((5,), 10, 11, 5, False),
        ((), -1, 4, 0, False),
        ((), -1, 7, 0, True),  # stage 2 was rebuilt in step 7
        ((5,), -1, 7, 5, True),
        ((5,), 7, 7, 5, False),
        ((5,), -1, 8, 5, False),
    ],
)
def test_when_a_validation_is_owed(
    evaluated: tuple[int, ...], unscored: int, step: int, every: int, owed: bool
) -> None:
    chronicle = lost(7)
    for at in evaluated:
        chronicle.evaluate(at, 3.0)
    chronicle.unscored = unscored
    assert chronicle.owes_validation(step, every) is owed


def test_a_recovery_travels_with_the_commit_of_its_step() -> None:
    chronicle = lost(7, now=10.0)
    assert chronicle.recovered(6, 12.5) == ()
    told = chronicle.recovered(7, 12.5)
    assert told == (Recovered(2, Rung.COPY, 2.5),)
    chronicle.commit(commit(7, *told), 12.5)
    assert chronicle.recovered(7, 13.0) == ()
    (rebuild,) = chronicle.rebuilds.values()  # who saw it keeps what it saw
    assert (rebuild.newcomer, rebuild.reason, rebuild.seconds) == (C, "its neighbour", 2.5)

    late = Chronicle()
    late.learn(chronicle.after(0), 99.0)
    (rebuild,) = late.rebuilds.values()
    assert (rebuild.stage, rebuild.step, rebuild.rung, rebuild.seconds) == (2, 7, Rung.COPY, 2.5)
    assert (rebuild.newcomer, rebuild.lost, rebuild.epoch, rebuild.reason) == (None, None, -1, BEFORE_US)
    assert late.recovered(7, 100.0) == ()


def test_the_newest_commits_and_rebuilds_are_kept_and_travel() -> None:
    chronicle = Chronicle()
    last = ENTRIES_KEPT + 2500
    back = (Recovered(1, Rung.BLEND, 1.0),)
    chronicle.learn(tuple(commit(step, *(back if step % 10 == 0 else ())) for step in range(1, last + 1)), 1.0)
    told = chronicle.after(0)
    assert (len(told), told[0].step, told[-1].step) == (ENTRIES_KEPT, 2501, last)
    assert len(chronicle.rebuilds) == REBUILDS_KEPT and min(chronicle.rebuilds) == (last - 10 * (REBUILDS_KEPT - 1), 1)
    pieces = list(frames.history_pieces(told))
    for piece in pieces:
        frame = frames.encode_frame(piece)
        size, payload = frames.read_prefix(frame[:8])
        assert frames.read_transfer(frame[8 : 8 + size], payload, 1) == piece
    assert sum(len(piece.commits) for piece in pieces) == ENTRIES_KEPT


@pytest.mark.parametrize(
    ("recoveries", "fits"),
    [
        ((Recovered(2, Rung.COPY, 2.5), Recovered(0, Rung.HEAD, 0.0)), True),
        ((Recovered(3, Rung.COPY, 2.5),), False),
        ((Recovered(-1, Rung.COPY, 2.5),), False),
        ((Recovered(2, Rung.COPY, -1.0),), False),
        ((Recovered(2, Rung.COPY, 1.0), Recovered(2, Rung.COPY, 2.0)), False),
    ],
)
def test_recoveries_that_cannot_be_are_not_believed(recoveries: tuple[Recovered, ...], fits: bool) -> None:
    assert credible([replace(commit(7), recoveries=recoveries)], SETTINGS) is fits
