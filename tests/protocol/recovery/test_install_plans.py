"""What a leader orders of empty stages."""

from __future__ import annotations

from ftnode.protocol.recovery.install_plans import KEEPERS_MAX, Hopeless, plan_installs
from ftnode.protocol.recovery.standing import Standing
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, INITIAL_ATTEMPT, Peer, Rung, Version
from tests.protocol.step.test_work_split import view

SETTINGS = Settings(run="r" * 32, stages=2, steps=9, microbatches=2, window=2)
BASE = Version(5, "c5", INITIAL_ATTEMPT)
EMPTY, ONE, TWO = Peer("m-empty", 1), Peer("x-one", 1), Peer("y-two", 1)


def test_of_many_who_say_that_they_have_a_copy_few_are_asked_and_members_first() -> None:
    strangers = tuple(Peer(f"a{number}", 1) for number in range(1000))
    standing = Standing(BASE, False, None, None, False, False, ((HEAD, EMPTY),), "")
    copies = {HEAD: (BASE, (*strangers, TWO))}
    plans = plan_installs(view((EMPTY,), (ONE,), (TWO,)), standing, SETTINGS, {}, copies)
    assert isinstance(plans, tuple)
    (plan,) = plans
    assert (plan.stage, plan.peer, plan.rung) == (HEAD, EMPTY, Rung.HEAD)
    assert [donor.peer for donor in plan.donors] == [TWO, *sorted(strangers)[: KEEPERS_MAX - 1]]


def test_nobody_is_asked_for_a_stage_that_is_vacant() -> None:
    """Somebody keeps a copy of it. The leader of a run that was over looked for the one who was to be filled with it,
    and its node ended (seed 500618 of the fuzz)."""
    standing = Standing(BASE, False, None, None, False, False, ((1, EMPTY),), "")
    found = plan_installs(view((ONE,), (EMPTY,), ()), standing, SETTINGS, {}, {2: (BASE, (TWO,))})
    assert isinstance(found, Hopeless) and found.stages == (1,)
