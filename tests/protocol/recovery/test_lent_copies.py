"""What is remembered of copies that were lent, and what a leader makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.lenders import lent, uncounted
from ftnode.protocol.recovery.install_plans import plan_installs
from ftnode.protocol.recovery.lent_copies import LentCopies
from ftnode.protocol.recovery.standing import Standing
from ftnode.protocol.words.messages import OTHER_COPY, Plan
from ftnode.protocol.words.settings import LENT_OF_A_KEEPER, LENT_REMEMBERED, LENT_TOLD
from ftnode.protocol.words.types import HEAD, Attempt, LentCopy, Peer, Rung, Version
from tests.protocol.situations import SETTINGS, A, B, C, D, situation, view_of


def version(step: int, commit: str = "c") -> Version:
    return Version(step, f"{commit}{step}", Attempt(1, step))


def copy(step: int, keeper: Peer = A, stage: int = 2, digest: str = "") -> LentCopy:
    return LentCopy(stage, keeper.id, version(step), digest or f"d{step}")


def book(*copies: LentCopy) -> LentCopies:
    known = LentCopies()
    known.hear(copies)
    return known


def test_a_copy_counts_for_the_keeper_that_got_it() -> None:
    known = book(copy(4))
    assert known.counts(A, 2, version(4)) and known.counts_of_step(A, 2, 4)
    assert not known.counts(B, 2, version(4)) and not known.counts(A, 1, version(4))
    assert not known.counts(A, 2, version(4, "other")) and not known.counts_of_step(A, 2, 5)
    assert known.counts(Peer(A.id, A.nonce + 1), 2, version(4)), "by its PeerId"


def test_news_is_what_was_not_known() -> None:
    known = LentCopies()
    assert known.hear([copy(4)]) and not known.hear([copy(4)]) and not known.hear([])
    assert known.hear([copy(4, digest="another")])


def test_of_each_keeper_the_newest_are_remembered() -> None:
    known = book(*(copy(step) for step in range(1, 10)), copy(3, B))
    assert [step for step in range(1, 10) if known.counts_of_step(A, 2, step)] == [8, 9]
    assert known.counts_of_step(B, 2, 3) and LENT_OF_A_KEEPER == 2


def test_an_old_word_that_comes_late_takes_no_newer_ones_place() -> None:
    known = book(copy(3), copy(4), copy(5))
    assert not known.hear([copy(2), copy(3)]) and known.newest([2]) == (copy(4), copy(5))


def test_what_cannot_have_been_lent_yet_is_not_heard() -> None:
    known = book(copy(4))
    assert not known.hear([copy(1000), copy(1001)], up_to=5) and known.hear([copy(5)], up_to=5)
    assert known.newest([2]) == (copy(4), copy(5))


def test_another_origin_has_other_copies() -> None:
    """After a restart from disks steps come again that were there before."""
    known = book(copy(8), copy(9))
    assert known.hear([copy(6)], "another") and known.newest([2]) == (copy(6),)


def test_a_keeper_that_asks_for_copy_after_copy_crowds_nobody_out() -> None:
    known = book(copy(3, B), *(copy(step) for step in range(1, 100)))
    assert known.counts_of_step(B, 2, 3)


def test_what_is_told_again_stays_and_memory_is_bounded() -> None:
    known = LentCopies()
    for life in range(1000):
        known.hear([copy(life, Peer(f"p{life}", 1)), copy(3, B)])
    assert known.counts_of_step(B, 2, 3) and len(known.newest([2])) == LENT_TOLD
    assert sum(known.counts_of_step(Peer(f"p{life}", 1), 2, life) for life in range(1000)) == LENT_REMEMBERED - 1


def test_the_newest_of_the_stages_asked_for_are_told() -> None:
    known = book(copy(4), copy(4, stage=1), copy(5))
    assert known.newest([2]) == (copy(4), copy(5)) and known.newest([3]) == () and known.stages() == [1, 2]


def test_digests_are_those_of_the_copy_and_of_later_ones_up_to_the_base() -> None:
    known = book(copy(4), copy(6), copy(5, B), copy(9, B), copy(6, C, digest="c's"))
    assert set(known.digests([A, B], 2, version(4), version(8))) == {"d4", "d6", "d5"}
    assert known.digests([A], 2, version(6), version(8)) == ("d6",), "no older one than the keeper told of"
    assert known.digests([], 2, version(4), version(8)) == () == known.digests([A], 1, version(4), version(8))


def test_a_leader_leaves_out_what_only_the_keeper_tells_of_and_says_so() -> None:
    memory, told = LeaderMemory(), {A: ((2, version(4)), (HEAD, version(5)))}
    s = situation()
    assert lent(s, memory, "lineage", told) == {A: ()}
    assert "stage 2" in uncounted(memory, told, {2}) and uncounted(memory, told, {1}) == ""
    memory.lent.hear([copy(4)])
    assert lent(s, memory, "lineage", told) == {A: ((2, version(4)),)} and uncounted(memory, told, {2}) == ""


def test_a_plan_names_the_digests_of_the_keepers_that_it_asks() -> None:
    view, base = view_of((A,), (B,), (C,)), version(7)
    where = Standing(base, False, None, None, False, False, ((HEAD, A),), "")
    known = book(copy(6, D, HEAD), copy(7, B, HEAD, "other"))
    settings = replace(SETTINGS, head_every=1)
    plans = plan_installs(view, where, settings, {}, {HEAD: (version(6), (D,))}, lent=known)
    assert isinstance(plans, tuple) and (plans[0].rung, plans[0].copy) == (Rung.HEAD, version(6))
    assert plans[0].told == ("d6",) and plans[0].takes("d6") and not plans[0].takes("other")


@pytest.mark.parametrize("told", [(), ("d6",)])
def test_nothing_else_is_taken(told: tuple[str, ...]) -> None:
    plan = Plan(HEAD, A, Rung.HEAD, (), 1.0, "", version(6), told=told)
    assert plan.takes("d6") is bool(told) and not plan.takes("") and OTHER_COPY
