"""When the next view leaves stages out, and what such a view is: rule 41, decision by decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.omissions import LEASES_MIN, Omissions, patience
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.recruiting import Recruiting
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.leader.restart import Restart
from ftnode.protocol.recovery.learning_cost import OMITTED
from ftnode.protocol.recovery.standing import same_routes
from ftnode.protocol.situation import Situation
from ftnode.protocol.step.routes import expected_visits, last_visit, neighbours, route, route_of
from ftnode.protocol.views.succession import fork, next_view, revive
from ftnode.protocol.wire.admission import well_formed
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import View
from tests.protocol.situations import NOW, A, B, C, D, Past, situation, standby, view_of

FOUR = Settings("run", stages=4, steps=100, microbatches=4, window=2, omit=True)
SIX, SWAPPED = replace(FOUR, stages=6), replace(FOUR, stages=6, swap=True)
VACANT = view_of((A,), (B,), (), (C,), (D,))
"""Nobody holds stage 2."""
WITHOUT = next_view(VACANT, A, (), (), {}, (), "", (), (2,))
BASE = Version(7, "c7", Attempt(2, 9))
FILLED = {2: (True, "it can be blended")}
USUAL = LEASES_MIN * FOUR.lease_seconds


@pytest.mark.parametrize(
    ("settings", "stages", "may"),
    [
        (FOUR, (2,), True),
        (FOUR, (3,), True),
        (FOUR, (0,), False),
        (FOUR, (1,), False),
        (FOUR, (4,), False),
        (FOUR, (2, 3), False),
        (replace(FOUR, omit=False), (2,), False),
        (replace(FOUR, stages=3), (2,), True),
        (replace(FOUR, stages=2), (1,), False),
        (SIX, (2, 3), True),
        (SIX, (2, 3, 4), False),
        (SWAPPED, (1,), True),
        (SWAPPED, (6,), True),
        (SWAPPED, (1, 2), False),
        (SWAPPED, (1, 6), True),
        (SWAPPED, (0,), False),
        (SWAPPED, (7,), False),
    ],
)
def test_which_stages_may_be_left_out(settings: Settings, stages: tuple[int, ...], may: bool) -> None:
    assert settings.may_leave_out(stages) == may


def test_routes_pass_a_stage_by_and_everybody_counts_the_same_visits() -> None:
    assert route(4, 0, False, (2,)) == (0, 1, 3, 4, 0) == route_of(FOUR, 0, WITHOUT)
    assert route(6, 1, True, (1, 3)) == (0, 2, 4, 6, 5, 0)
    assert last_visit(4, WITHOUT) == 4 and last_visit(4, VACANT) == 5
    assert expected_visits(4, 2, 3, False, (2,)) == {(0, 2), (1, 2)}
    assert expected_visits(4, 2, 2, False, (2,)) == frozenset()
    assert neighbours(WITHOUT, 1) == (A, C), "it passes on to stage 3"
    assert neighbours(WITHOUT, 2) == (B, C), "whoever takes it must reach both"


def test_the_next_view_says_it_until_somebody_holds_the_stage() -> None:
    assert WITHOUT.omitted == (2,) and WITHOUT.vacancies() == () and WITHOUT.epochs[2] == WITHOUT.number
    kept = next_view(WITHOUT, A, (C,), (), {3: Peer("e", 1)}, (), "")
    assert kept.omitted == (2,) and kept.epochs[2] == WITHOUT.number
    back = next_view(kept, A, (), (), {2: C}, (), "")
    assert back.omitted == () and back.holders[2] == (C,) and back.epochs[2] == back.number
    assert WITHOUT.digest() != replace(WITHOUT, omitted=()).digest()


def test_a_lineage_goes_on_without_the_stage_unless_its_founder_has_it() -> None:
    assert fork(WITHOUT, A, 1, (A, B), "").omitted == (2,)
    assert revive(WITHOUT, B, 1, (0, 1), "").omitted == (2,)
    assert revive(WITHOUT, B, 1, (0, 2), "").omitted == ()


def test_an_attempt_of_before_does_not_go_on() -> None:
    assert not same_routes(WITHOUT, Attempt(VACANT.number, 5))
    assert same_routes(WITHOUT, Attempt(WITHOUT.number, 1)) and same_routes(VACANT, Attempt(1, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"omitted": (2, 2)},
        {"omitted": (1,)},
        {"omitted": (0,)},
        {"omitted": (-1,)},
        {"omitted": (9,)},
        {"omitted": (2, 3), "holders": ((A,), (B,), (), (), (D,))},
        {"holders": ((A,), (B,), (C,), (C,), (D,))},
    ],
)
def test_a_view_that_leaves_out_what_has_to_stay_is_dropped(wrong: dict[str, tuple[int, ...]]) -> None:
    assert well_formed(WITHOUT, FOUR) and not well_formed(WITHOUT, replace(FOUR, omit=False))
    assert not well_formed(replace(WITHOUT, **wrong), FOUR)  # type: ignore[arg-type]


# -- when


def role(view: View = VACANT, base: Version = BASE, settings: Settings = FOUR) -> tuple[Omissions, Recruiting]:
    memory, progress = LeaderMemory(), ViewProgress(base=base)
    losses = Losses(view, memory, progress, settings)
    moves, restart = ReplicaMoves(view, memory, losses, NOW), Restart(view, memory, progress, losses)
    recruiting = Recruiting(view, memory, progress, losses, moves, restart)
    return Omissions(view, memory, progress, recruiting), recruiting


def at(now: float, settings: Settings = FOUR, view: View = VACANT) -> Situation:
    return situation(view=view, settings=settings, now=now, history=Past(7))


def test_a_run_waits_as_long_as_leaving_out_costs() -> None:
    omissions, _ = role()
    assert omissions.due(at(NOW), FILLED) is None
    wait = OMITTED * FOUR.lease_seconds  # nothing says how long a step takes
    assert omissions.due(at(NOW + wait - 0.1), FILLED) is None
    found = omissions.due(at(NOW + wait), FILLED)
    assert found is not None and found[0] == (2,) and "stage 2 is left out until somebody can hold it" in found[1]


def test_the_wait_is_two_leases_or_so_many_steps_and_longer_where_a_disk_has_the_stage() -> None:
    assert patience(FOUR, 0.1, 7) == USUAL and patience(FOUR, 100.0, 7) == OMITTED * 100.0
    kept = replace(FOUR, snapshot_every=5)
    assert patience(kept, 0.1, 7) == USUAL
    assert patience(kept, 0.1, 10) == kept.restart_wait_seconds > USUAL


@pytest.mark.parametrize(
    ("view", "base", "settings", "rungs"),
    [
        (VACANT, BASE, replace(FOUR, omit=False), FILLED),
        (VACANT, replace(BASE, step=0), FOUR, FILLED),
        (VACANT, replace(BASE, step=100), FOUR, FILLED),
        (VACANT, BASE, FOUR, {2: (False, "nothing is left to blend it from")}),
        (view_of((), (B,), (), (C,), (D,)), BASE, FOUR, {0: (True, ""), 2: (True, "")}),
        (view_of((A,), (), (), (C,), (D,)), BASE, FOUR, {1: (True, ""), 2: (True, "")}),
    ],
    ids=["not allowed", "nothing is trained", "all is trained", "no way back", "the head, too", "an end, too"],
)
def test_what_is_never_left_out(
    view: View, base: Version, settings: Settings, rungs: dict[int, tuple[bool, str]]
) -> None:
    omissions, _ = role(view, base, settings)
    assert omissions.due(at(NOW, settings, view), rungs) is None
    assert omissions.due(at(NOW + 1e6, settings, view), rungs) is None


def test_whoever_has_been_asked_is_waited_for() -> None:
    omissions, recruiting = role()
    omissions.due(at(NOW), FILLED)
    newcomer = Peer("e", 1)
    late = at(NOW + 1e6)._replace(presences=standby(newcomer))
    late.liveness.heard[newcomer] = late.now
    recruiting.offer(late, [2], FILLED)
    assert recruiting.pending and omissions.due(late, FILLED) is None
    recruiting.on_candidate_lost(newcomer)
    assert omissions.due(late, FILLED) is not None


def test_another_leader_waits_anew_and_a_filled_stage_is_forgotten() -> None:
    omissions, _ = role()
    omissions.due(at(NOW), FILLED)
    memory = omissions.memory
    assert memory.vacant_since == {2: NOW}
    Omissions(WITHOUT, memory, omissions.progress, omissions.recruiting)
    assert memory.vacant_since == {}
