"""Weights on their way to a peer: asked for once, carried on while steps pass, given up when nobody notices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.recovery.installs import BACKLOG_MAX, Installs
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.effects import Forget, Install, Note
from ftnode.protocol.words.events import Installed, InstallFailed
from ftnode.protocol.words.messages import Donor, Plan
from ftnode.protocol.words.types import Attempt, Peer, Rung, Version
from tests.protocol.beginnings import BASE, begun
from tests.protocol.situations import NOW, SETTINGS, VIEW, A, B, C, D, alive, situation, view_of

STEP = 0.5
LEASE, LIMIT = SETTINGS.lease_seconds, SETTINGS.install_seconds
PLAN = Plan(1, B, Rung.BLEND, (Donor(2, C, ()),), 1.1, "its holder is gone", None)
COPIED = replace(PLAN, rung=Rung.SHADOW, copy=BASE)
OTHER = replace(PLAN, donors=(Donor(0, A, ()),))
ELSEWHERE = replace(PLAN, stage=2)
HELD, LEARNT = 1, 2
"""B holds stage 1 of VIEW, and learns stage 2."""


def version(step: int) -> Version:
    return Version(step, f"c{step}", Attempt(3, step))


def at_b(after: float = 0.0, **changes: Any) -> Situation:
    return situation(me=B, now=NOW + after, **changes)


def orders(out: Outcome) -> list[Install]:
    return [each for each in out if isinstance(each, Install)]


def under_way(plan: Plan = PLAN, base: Version = BASE) -> Installs:
    installs = Installs()
    installs.start(at_b(), plan, base)
    return installs


def failed(stage: int = HELD, base: Version = BASE, donor: Peer | None = C) -> InstallFailed:
    return InstallFailed(stage, base, donor, "it has none")


@pytest.mark.parametrize(
    ("plan", "base", "broken_off", "ordered"),
    [
        (PLAN, BASE, (), []),
        (replace(PLAN), replace(BASE), (), []),
        (PLAN, version(8), (), [Install(PLAN, version(8))]),
        (OTHER, BASE, (), [Install(OTHER, BASE)]),
        (ELSEWHERE, BASE, (), [Install(ELSEWHERE, BASE)]),
        (PLAN, BASE, (HELD,), [Install(PLAN, BASE)]),
    ],
    ids=["the same", "an equal one", "another base", "another plan", "another stage", "after it was broken off"],
)
def test_what_is_ordered_twice_is_begun_once(
    plan: Plan, base: Version, broken_off: tuple[int, ...], ordered: list[Install]
) -> None:
    installs = under_way()
    for stage in broken_off:
        assert installs.drop(stage) and stage not in installs
    out = installs.start(at_b(1.0), plan, base)
    assert orders(out) == ordered
    assert plan.stage in installs and installs.becomes(plan.stage) == base
    assert [each.kind for each in out if isinstance(each, Note)] == ["rebuild"] * len(ordered)


@pytest.mark.parametrize(
    ("fetched", "commits", "carried"),
    [
        (5, [6], [True]),
        (5, [7], [False]),
        (5, [5], [False]),
        (5, [6, 6], [True, False]),
        (5, [6, 7, 9], [True, True, False]),
        (5, [*range(6, 6 + BACKLOG_MAX)], [True] * BACKLOG_MAX),
        (5, [*range(6, 7 + BACKLOG_MAX)], [True] * BACKLOG_MAX + [False]),
    ],
    ids=["the next", "one is missed", "its own", "twice", "a gap", "as many as fit", "one more than fits"],
)
def test_a_learner_carries_its_state_on_while_it_misses_no_gradient(
    fetched: int, commits: list[int], carried: list[bool]
) -> None:
    installs = under_way(base=version(fetched))
    assert [installs.carries_on(HELD, version(step)) for step in commits] == carried
    reached = fetched + sum(carried)
    assert installs.becomes(HELD) == version(reached)
    assert not installs.carries_on(LEARNT, version(fetched + 1)), "nothing is under way there"
    assert installs.on_installed(at_b(), Installed(HELD, version(fetched), 9, 1.0, 0.0, ""))[0] == version(reached)


@pytest.mark.parametrize(
    ("stage", "base", "becomes"),
    [(HELD, BASE, BASE), (HELD, version(6), None), (LEARNT, BASE, None), (3, version(8), None)],
    ids=["the one", "an older one", "another stage", "a stage of nobody"],
)
def test_only_what_is_waited_for_is_installed(stage: int, base: Version, becomes: Version | None) -> None:
    installs = under_way()
    version_now, out = installs.on_installed(at_b(), Installed(stage, base, 1234, 1.0, 0.0, "digest"))
    assert version_now == becomes
    assert (HELD in installs) == (becomes is None) == (not out)
    assert installs.fetched == ({} if becomes is None else {HELD: 1234})


@pytest.mark.parametrize(
    ("plan", "donor", "after", "goes_on", "waits"),
    [
        (PLAN, C, LEASE + STEP, True, True),
        (PLAN, C, LIMIT, True, True),
        (PLAN, C, LIMIT + STEP, False, False),
        (PLAN, None, LEASE + STEP, True, True),
        (PLAN, D, LEASE, True, True),
        (PLAN, D, LEASE + STEP, False, False),
        (COPIED, C, LEASE, True, True),
        (COPIED, C, LEASE + STEP, False, False),
        (ELSEWHERE, C, STEP, True, False),
        (ELSEWHERE, D, LIMIT + STEP, True, False),
    ],
    ids=[
        "a member", "a member, up to the limit", "a member, for too long", "our own fault", "an outsider for a lease",
        "an outsider for longer", "a copy for a lease", "a copy for longer", "a learner", "a learner, at any time",
    ],
)  # fmt: skip
def test_a_donor_that_does_not_give(plan: Plan, donor: Peer | None, after: float, goes_on: bool, waits: bool) -> None:
    installs = under_way(plan)
    if plan.stage == HELD:
        assert installs.on_failed(at_b(), failed(donor=donor))[0], "once is no reason to give up"
    s = at_b(after)
    answer, out = installs.on_failed(s, failed(plan.stage, donor=donor))
    assert (answer, plan.stage in installs, orders(out)) == (goes_on, waits, [])
    assert bool(out) == goes_on, "whoever goes on says so"
    again = [Install(plan, BASE)] if waits else []
    early, late = SETTINGS.resend_seconds - STEP, SETTINGS.resend_seconds
    assert orders(installs.beat(at_b(after + early))) == []
    assert orders(installs.beat(at_b(after + late))) == again
    assert orders(installs.beat(at_b(after + late + STEP))) == [], "asked again once"


@pytest.mark.parametrize(
    "event", [failed(base=version(6)), failed(LEARNT), failed(3)], ids=["another base", "not under way", "nobody's"]
)
def test_a_failure_of_something_else_changes_nothing(event: InstallFailed) -> None:
    installs = under_way()
    for after in (0.0, LIMIT + STEP):
        assert installs.on_failed(at_b(after), event) == (True, [])
    assert HELD in installs and not installs.beat(at_b(2 * LIMIT))


@pytest.mark.parametrize(
    ("plan", "after", "woke", "hung", "late"),
    [
        (PLAN, LIMIT, None, None, []),
        (PLAN, LIMIT + STEP, None, HELD, []),
        (PLAN, LIMIT + STEP, 1.0, None, []),
        (PLAN, LIMIT + 1.0 + STEP, 1.0, HELD, []),
        (ELSEWHERE, LIMIT, None, None, []),
        (ELSEWHERE, LIMIT + STEP, None, None, [LEARNT]),
        (ELSEWHERE, LIMIT + STEP, 1.0, None, [LEARNT]),
    ],
    ids=["in time", "too long", "we were suspended", "and still", "learnt", "learnt too long", "learnt, suspended"],
)
def test_weights_that_take_too_long(
    plan: Plan, after: float, woke: float | None, hung: int | None, late: list[int]
) -> None:
    liveness = alive(A, C)
    if woke is not None:
        liveness.grace = NOW + woke
    s = at_b(after, liveness=liveness)
    installs = under_way(plan)
    assert (installs.hung(s), installs.too_late(s)) == (hung, late)
    installs.lost()
    assert (installs.hung(s), installs.too_late(s)) == (None, []), "compute is gone, and all with it"


@pytest.mark.parametrize(
    ("kept", "gone"),
    [
        ((HELD, LEARNT), []),
        ((HELD,), [LEARNT]),
        ((LEARNT,), [HELD]),
        ((), [HELD, LEARNT]),
        ((3,), [HELD, LEARNT]),
    ],
)
def test_installs_that_nobody_waits_for_are_broken_off(kept: tuple[int, ...], gone: list[int]) -> None:
    installs = under_way()
    installs.start(at_b(), ELSEWHERE, BASE)
    assert installs.keep_only(kept) == gone
    assert [stage for stage in (HELD, LEARNT) if stage in installs] == [s for s in (HELD, LEARNT) if s not in gone]
    assert installs.keep_only(kept) == [] and not any(installs.drop(stage) for stage in gone)


@pytest.mark.parametrize(
    ("step", "donor", "rung"),
    [(7, C, Rung.REPLICA), (8, D, Rung.REPLICA), (0, D, Rung.INITIAL)],
    ids=["one holder", "the other at the next step", "nothing is trained yet"],
)
def test_a_learner_asks_the_holders_in_turn(step: int, donor: Peer, rung: Rung) -> None:
    s = at_b(view=view_of((A,), (B,), (C, D)), contacts={donor: ("/there",)})
    forget, note, install = Installs().learn(s, LEARNT, begun(version(step), learners=((LEARNT, B),)))
    assert forget == Forget(LEARNT) and isinstance(note, Note) and isinstance(install, Install)
    assert install.plan.donors == (Donor(LEARNT, donor, ("/there",)),)
    assert (install.plan.rung, install.base) == (rung, version(step))


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("rung", [Rung.INITIAL, Rung.REPLICA])
def test_what_an_untrained_stage_begins_with_is_said_as_the_run_has_it(rung: Rung, continued: bool) -> None:
    s = at_b(settings=replace(SETTINGS, continued=continued))
    installs, plan = Installs(), replace(PLAN, rung=rung, donors=())
    started = installs.start(s, plan, BASE)
    _, done = installs.on_installed(s, Installed(HELD, BASE, 0, 0.0, 0.0, "digest"))
    texts = [each.text for each in (*started, *done) if isinstance(each, Note)]
    first = "from the model that the run goes on from" if continued else "from random weights"
    says = first if rung is Rung.INITIAL else "from another holder's weights"
    assert len(texts) == 2 and all(says in text for text in texts)


@pytest.mark.parametrize(
    ("changes", "epoch", "goes_on", "outdated"),
    [
        ({}, 0, True, False),
        ({}, 0, False, False),
        ({}, 1, True, True),
        ({"installs": (ELSEWHERE,)}, 0, True, True),
        ({"installs": (PLAN,)}, 0, True, False),
        ({"attempt": Attempt(2, 9)}, 0, False, True),
        ({"attempt": Attempt(2, 9)}, 0, True, False),
    ],
    ids=["nothing new", "a new attempt", "another holder", "rebuilt", "another stage is rebuilt", "unseen", "goes on"],
)
def test_what_is_learnt_is_outdated_when_the_stage_is_rebuilt(
    changes: dict[str, Any], epoch: int, goes_on: bool, outdated: bool
) -> None:
    installs = Installs()
    installs.learn(at_b(), LEARNT, begun())
    s = at_b(view=replace(VIEW, epochs=(0, 0, epoch)))
    assert installs.outdated(s, LEARNT, begun(**changes), goes_on) == outdated
