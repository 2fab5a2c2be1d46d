"""What a leader orders of empty stages, from what is told of copies."""

from __future__ import annotations

from ftnode.protocol.barrier import KEEPERS_MAX, Standing, plan_installs
from ftnode.protocol.settings import Settings
from ftnode.protocol.types import HEAD, INITIAL_ATTEMPT, Peer, Rung, Version
from tests.protocol.test_division import view

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
