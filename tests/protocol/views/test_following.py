"""Which view a peer goes by: certificates, genesis, a leader or a quorum that is gone. The role alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.situation import (
    AskAround,
    Beat,
    ClearTimer,
    GiveViewUp,
    GoBack,
    Outcome,
    SetTimer,
    ShowView,
    Situation,
    TakeUp,
    YieldTo,
)
from ftnode.protocol.views.ballot import Balloting
from ftnode.protocol.views.following import FOUNDER_PATIENCE_WINDOWS, Following
from ftnode.protocol.views.founding import why_founded
from ftnode.protocol.views.succession import fork, next_view
from ftnode.protocol.words.effects import Note, PublishView, Search, Send
from ftnode.protocol.words.events import Directory
from ftnode.protocol.words.messages import Ballot, Certificate, Prepare, Proof, Signed
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Attempt, Peer, Snapshot, Version
from ftnode.protocol.words.view import Lineage, View
from tests.protocol.situations import NOW, SETTINGS, VIEW, A, B, C, D, Held, Past, alive, report, situation, standby
from tests.protocol.situations import view_of as view_by_a

E = Peer("e", 1)
LONG_AGO = NOW - 15.0
"""More than a lease: who heard of a quorum then does not stand behind its view; the leader is not useless yet."""
STEP_7 = Version(7, "c7", Attempt(2, 9))


@dataclass
class Leads:
    """A leader whose lineage is worth this step."""

    step: int = 0

    def wanting(self, s: Situation) -> bool:
        return self.step == 0

    def waiting(self, s: Situation) -> str:
        return ""

    def hopeful(self, s: Situation) -> bool:
        return False

    def told_step(self, s: Situation) -> int:
        return self.step

    def worth(self, s: Situation) -> int:
        return self.step


def signed_by(*peers: Peer) -> Proof:
    return Proof(Ballot(0, peers[0]), tuple(Signed(peer, "") for peer in peers))


ALL = signed_by(A, B, C)


def follow(at: float = NOW, mine: View | None = VIEW, proof: Proof | None = ALL) -> Following:
    """It has gone by `mine` on this proof."""
    role = Following(Chronicle())
    role.started(at)
    if mine is not None:
        role.proofs.keep(mine, proof)
    return role


def view(leader: Peer, lineage: Lineage, *holders: tuple[Peer, ...], number: int = 3, previous: str = "x") -> View:
    made = view_by_a(*holders, number=number, lineage=lineage, voters=(leader,))
    return replace(made, leader=leader, previous=previous)


def told(role: Following, s: Situation, sender: Peer, shown: View, quorate: bool = True, step: int = 0) -> Outcome:
    """What the role answers to a certificate that all of VIEW have signed, without its words."""
    said = role.on_certificate(s, sender, Certificate(shown, quorate, (), step, ALL), shown)
    return Outcome(each for each in said if not isinstance(each, Note))


# -- certificates of the lineage that we follow, or of any while we follow none


@pytest.mark.parametrize(
    ("mine", "shown", "expected"),
    [
        (VIEW, next_view(VIEW, A, (), (), {}, (), "next"), "taken"),
        (VIEW, replace(VIEW, number=4), "asked"),
        (VIEW, replace(VIEW, number=9), "taken"),
        (VIEW, VIEW, ""),
        (VIEW, replace(VIEW, number=2), "shown ours"),
        (VIEW, replace(VIEW, number=4, run="another run"), ""),
        (VIEW, replace(VIEW, number=4, holders=((A,), (B,))), ""),
        (None, VIEW, "taken"),
        (None, replace(VIEW, run="another run"), ""),
    ],
)
@pytest.mark.parametrize("quorate", [True, False])
@pytest.mark.parametrize("me", [B, D])
def test_a_newer_view_of_our_lineage_is_taken_up_and_an_older_one_answered(
    me: Peer, quorate: bool, mine: View | None, shown: View, expected: str
) -> None:
    out = told(follow(), situation(me=me, view=mine), C, shown, quorate)
    answers = {"taken": [TakeUp(shown, ALL)], "shown ours": [ShowView(C, 2)], "asked": [Beat((C,), True)], "": []}
    assert out == answers[expected]


# -- two lineages


LISTED = replace(SETTINGS, listed=True)
LOW, HIGH = Lineage("a-low-id", 0, 3), Lineage("other", 0, 3)
"""Beside the lineage `lineage`: where the steps are about the same, the lower id goes on."""


@pytest.mark.parametrize(
    ("lineage", "step", "worth", "yields"),
    [
        (HIGH, 40, 16, True),
        (HIGH, 24, 16, True),
        (HIGH, 23, 16, False),
        (HIGH, 16, 16, False),
        (HIGH, 1, 0, True),
        (HIGH, 0, 0, False),
        (LOW, 23, 16, True),
        (LOW, 16, 16, True),
        (LOW, 15, 16, False),
        (LOW, 0, 0, True),
        (LOW, 0, 1, False),
        (replace(LOW, forks=1), 16, 16, False),
        (replace(HIGH, exact_stages=4), 16, 16, True),
    ],
)
@pytest.mark.parametrize("root", ["", "lineage"])
def test_the_farther_lineage_goes_on_and_the_static_rank_tells_where_steps_are_alike(
    root: str, lineage: Lineage, step: int, worth: int, yields: bool
) -> None:
    """With a common past and without."""
    other = view(D, replace(lineage, root=root), (D,), (D,), (D,))
    out = told(follow(), situation(led=Leads(worth), settings=LISTED), D, other, True, step)
    assert out == ([YieldTo(other, ALL)] if yields else [ShowView(D)])


FAR = view(D, HIGH, (D,), (D,), (E,))


@pytest.mark.parametrize(
    ("me", "changes", "sender", "quorate", "expected"),
    [
        (A, {"led": Leads(16), "settings": LISTED}, D, True, [YieldTo(FAR, ALL)]),
        (A, {"led": Leads(16)}, D, False, [ShowView(D)]),
        (A, {"led": Leads(16)}, E, True, [Beat((D,), True), ShowView(E)]),
        (B, {"reports": {A: report()}}, D, True, [YieldTo(FAR, ALL)]),
        (B, {"reports": {A: replace(report(), waiting="disks")}}, D, True, []),
        (B, {}, D, True, []),
        (B, {"quorate_at": LONG_AGO, "liveness": alive()}, D, True, [YieldTo(FAR, ALL)]),
        (Peer("f", 1), {}, D, True, [YieldTo(FAR, ALL)]),
    ],
)
def test_only_the_word_of_their_leader_moves_a_member_that_can_judge(
    me: Peer, changes: dict[str, Any], sender: Peer, quorate: bool, expected: Outcome
) -> None:
    assert told(follow(), situation(me=me, **changes), sender, FAR, quorate, 90) == expected


@pytest.mark.parametrize(("seconds", "answered"), [(0.0, False), (1.9, False), (2.0, True), (90.0, True)])
def test_a_peer_of_another_lineage_is_answered_once_in_a_heartbeat(seconds: float, answered: bool) -> None:
    role = follow()
    assert told(role, situation(led=Leads(16)), D, FAR, False) == [ShowView(D)]
    later = situation(led=Leads(16), now=NOW + seconds)
    assert told(role, later, D, FAR, False) == ([ShowView(D)] if answered else [])
    assert told(role, later, E, FAR, False) == [ShowView(E)]


# -- lineages of one origin, and those founded out of our view


FORK = fork(VIEW, B, 1, {B, C}, "survivors")
OTHER_FORK = fork(replace(VIEW, number=2), B, 1, {B, C}, "survivors of another view")
DISKS = view(A, Lineage("disks", 0, 3, "", STEP_7), (A,), (B,), (C,), number=4, previous=VIEW.digest())
DISKS_BY_B = replace(DISKS, leader=B)


@pytest.mark.parametrize(
    ("me", "sender", "shown", "quorate_at", "taken"),
    [
        (C, B, FORK, LONG_AGO, True),
        (C, B, FORK, NOW, False),
        (D, B, FORK, LONG_AGO, False),
        (C, B, OTHER_FORK, LONG_AGO, False),
        (C, A, DISKS, NOW, True),
        (C, B, DISKS, NOW, False),
        (C, B, DISKS_BY_B, NOW, False),
        (C, B, DISKS_BY_B, LONG_AGO, True),
        (C, D, DISKS_BY_B, LONG_AGO, False),
    ],
)
def test_a_lineage_founded_for_us_is_taken_up(
    me: Peer, sender: Peer, shown: View, quorate_at: float, taken: bool
) -> None:
    s = situation(me=me, quorate_at=quorate_at, liveness=alive(B, C))
    assert (told(follow(), s, sender, shown, False) == [TakeUp(shown, ALL)]) == taken


@pytest.mark.parametrize(
    ("weights", "root", "step", "follows"),
    [
        ({}, "other root", 0, True),
        ({1: STEP_7}, "lineage", 0, True),
        ({1: STEP_7}, "other root", 0, False),
        ({1: STEP_7}, "other root", 6, True),
    ],
)
def test_a_standby_without_a_quorum_follows_who_has_one_unless_its_weights_were_of_no_use_there(
    weights: dict[int, Version], root: str, step: int, follows: bool
) -> None:
    other = view(A, Lineage("other", 1, 3, root), (A,), (C,), (C,))
    s = situation(me=D, own=Held(versions=weights), liveness=alive(C), quorate_at=LONG_AGO)
    assert (told(follow(), s, A, other, True, step) == [YieldTo(other, ALL)]) == follows


@pytest.mark.parametrize(("silent_for", "back"), [(1.0, False), (15.0, False), (25.0, True)])
@pytest.mark.parametrize("given_up", [VIEW, None])
def test_who_lost_goes_back_when_nobody_stands_behind_the_winner(
    given_up: View | None, silent_for: float, back: bool
) -> None:
    role = follow(NOW - silent_for)
    won = view(A, Lineage("winner", 0, 3), (A,), (C,), (C,))
    s = situation(me=B, view=won, own=Held(given_up=given_up), liveness=alive(), quorate_at=NOW - silent_for)
    out = role.beat(s, None)
    assert (GoBack(VIEW) in out) == (back and given_up is VIEW)


@pytest.mark.parametrize(
    ("given_up", "waiting", "back"),
    [
        (VIEW, "halted: the head is lost", True),
        (None, "halted: the head is lost", False),
        (VIEW, "a volunteer for stage 2", False),
        (VIEW, "", False),
    ],
)
def test_who_lost_goes_back_when_the_winner_cannot_go_on(given_up: View | None, waiting: str, back: bool) -> None:
    won = view(A, Lineage("winner", 0, 3), (A,), (C,), (C,))
    told_by = {A: replace(report(), waiting=waiting)}
    s = situation(me=B, view=won, own=Held(given_up=given_up), reports=told_by, liveness=alive(A, C))
    assert (GoBack(VIEW) in follow(NOW).beat(s, None)) == back


def test_who_yields_again_to_a_winner_that_halts_stays_there() -> None:
    """Its own lineage did not go on either."""
    won = view(A, Lineage("winner", 0, 3), (A,), (C,), (C,))
    told_by = {A: replace(report(), waiting="halted: the head is lost")}
    s = situation(me=B, view=won, own=Held(given_up=VIEW), reports=told_by, liveness=alive(A, C))
    role = follow(NOW)
    assert [GoBack(VIEW) in role.beat(s, None) for _ in range(2)] == [True, False]
    role.quorate_at = NOW - 2 * SETTINGS.lease_seconds - 1
    assert GoBack(VIEW) in role.beat(s._replace(liveness=alive()), None), "unless nobody is there"


# -- genesis


def listening(presences: Mapping[Peer, Presence], listed: tuple[View, ...] = (), **changes: Any) -> Following:
    """It has read the directory once and found no view."""
    role, s = follow(), founding(presences, **changes)
    role.on_directory(s, listed)
    out = role.after_directory(s, Directory(tuple(presences.values()), listed), None)
    due = [] if listed or not s.own.compute_ready else [SetTimer("found", NOW + 3.0, keep=True)]
    assert out == due
    return role


def founding(presences: Mapping[Peer, Presence], **changes: Any) -> Situation:
    return situation(me=B, view=None, presences=presences, **changes)


def founds(out: Outcome) -> bool:
    return any(isinstance(each, TakeUp) for each in out)


@pytest.mark.parametrize(
    ("presences", "refused", "waits"),
    [
        ({}, (), 0),
        (standby(C, lineage=""), (), 0),
        (standby(A, lineage=""), (), FOUNDER_PATIENCE_WINDOWS),
        (standby(C), (), FOUNDER_PATIENCE_WINDOWS),
        ({**standby(A, lineage=""), **standby(C)}, (C,), FOUNDER_PATIENCE_WINDOWS),
        (standby(A, lineage=""), (A,), 0),
    ],
)
def test_a_founder_waits_some_windows_for_a_rival_with_a_lower_id_or_with_a_lineage(
    presences: dict[Peer, Presence], refused: tuple[Peer, ...], waits: int
) -> None:
    liveness = alive()
    liveness.refused.update(refused)
    role, s = listening(presences), founding(presences, liveness=liveness)
    rivals = tuple(peer for peer in presences if peer not in refused)
    for _ in range(waits):
        expected = [Beat(rivals, True), Search("waits for a founder"), SetTimer("found", NOW + 3.0)]
        assert role.found_due(s) == expected
    assert founds(role.found_due(s))


@pytest.mark.parametrize(
    ("listed", "changes", "result"),
    [
        ((), {}, True),
        ((VIEW,), {}, False),
        ((), {"own": Held(compute_ready=False)}, False),
        ((), {"view": VIEW}, False),
        ((), {"history": Past(1)}, False),
        ((), {"own": Held(versions={1: STEP_7})}, False),
        ((), {"own": Held(capacity=0)}, False),
        ((), {"hold": 0}, False),
    ],
)
def test_a_run_is_founded_only_where_nothing_is_known_of_it(
    listed: tuple[View, ...], changes: dict[str, Any], result: bool
) -> None:
    role = listening({}, listed)
    assert founds(role.found_due(situation(**{"me": B, "view": None, **changes}))) == result


def test_who_starts_again_is_not_told_that_the_run_is_founded_anew() -> None:
    """Where a disk has snapshots, or somebody tells of some."""
    kept = (Snapshot(1, STEP_7, "digest", 1),)
    keeping = {"me": B, "view": None, "settings": replace(SETTINGS, snapshot_every=7)}
    for changes in ({"own": Held(snapshots=kept)}, {"presences": standby(C, lineage="", snapshots=kept)}):
        s = situation(**keeping, **changes)
        out = listening({}).found_due(s)
        (said,) = (each.text for each in out if isinstance(each, Note) and each.kind == "found")
        assert said.startswith("nobody else is here yet: takes ")
        assert said.endswith(", and looks for the snapshots to go on from: the newest is of step 7")
        (view,) = (each.view for each in out if isinstance(each, TakeUp))
        assert why_founded(s, view) == "a swarm comes together again, and looks at its disks before it trains"
        assert why_founded(s, replace(view, previous="parent", reason="B is lost")) == "B is lost"
    s = situation(**keeping)
    (view,) = (each.view for each in listening({}).found_due(s) if isinstance(each, TakeUp))
    assert why_founded(s, view) == "the run is founded"


# -- a leader that is gone


BY_TWO = view_by_a((A,), (B,), (C,), voters=(A, B))


@pytest.mark.parametrize(
    ("me", "mine", "hears", "seconds", "proposes"),
    [
        (B, VIEW, (B, C), 1.9, False),
        (B, VIEW, (B, C), 2.0, True),
        (C, VIEW, (B, C), 3.9, False),
        (C, VIEW, (B, C), 4.0, True),
        (C, VIEW, (C,), 1.9, False),
        (C, VIEW, (C,), 2.0, True),
        (B, VIEW, (A, B, C), 60.0, False),
        (C, BY_TWO, (B, C), 60.0, False),
        (D, VIEW, (B, C), 60.0, False),
    ],
)
def test_the_voter_of_the_lowest_living_rank_proposes_first(
    me: Peer, mine: View, hears: tuple[Peer, ...], seconds: float, proposes: bool
) -> None:
    role, balloting = follow(), Balloting(me, mine)
    for now in (NOW, NOW + seconds):
        out = role.beat(situation(me=me, view=mine, now=now, liveness=alive(*hears, now=now)), balloting)
    asked = [each.to for each in out if isinstance(each, Send) and isinstance(each.message, Prepare)]
    assert asked == (list(mine.voters) if proposes else [])
    assert balloting.proposing == proposes
    if proposes:
        assert balloting.proposal is not None and A not in balloting.proposal.members()


@pytest.mark.parametrize(("heard_again", "proposes"), [(False, True), (True, False)])
def test_a_leader_that_is_heard_again_is_waited_for_anew(heard_again: bool, proposes: bool) -> None:
    role, balloting = follow(), Balloting(B, VIEW)
    for seconds, heard in ((0.0, False), (1.0, heard_again), (2.0, False)):
        hears = (A, B, C) if heard else (B, C)
        now = NOW + seconds
        role.beat(situation(me=B, now=now, liveness=alive(*hears, now=now)), balloting)
    assert balloting.proposing == proposes


def test_no_leader_is_replaced_after_the_end() -> None:
    role, balloting = follow(), Balloting(B, VIEW)
    for now in (NOW, NOW + 60.0):
        role.beat(situation(me=B, now=now, liveness=alive(B, C, now=now), own=Held(finished=True)), balloting)
    assert not balloting.proposing


@pytest.mark.parametrize(("seconds", "number"), [(0.0, 1), (4.9, 1), (10.0, 2), (30.0, 2)])
def test_a_ballot_without_a_quorum_is_said_again_and_then_raised(seconds: float, number: int) -> None:
    role, balloting = follow(), Balloting(B, VIEW)
    for now in (NOW, NOW + 2.0, NOW + 2.0 + seconds):
        out = role.beat(situation(me=B, now=now, liveness=alive(B, C, now=now)), balloting)
    asked = {each.message for each in out if isinstance(each, Send)}
    assert asked == {Prepare("lineage", 4, Ballot(number, B))}


# -- a quorum that is gone


FOUR = view_by_a((A,), (B,), (C,), (D,))
ONE_VOTES = view_by_a((A,), (B,), (C,), voters=(A,))


def beaten(me: Peer, mine: View, hears: tuple[Peer, ...], seconds: float, **changes: Any) -> Outcome:
    """It has heard of no quorum for long, and beats now and so much later."""
    role, balloting = follow(), Balloting(me, mine)
    for now in (NOW, NOW + seconds):
        said = {"quorate_at": LONG_AGO, "liveness": alive(*hears, now=now), **changes}
        out = role.beat(situation(me=me, view=mine, now=now, **said), balloting)
    return out


@pytest.mark.parametrize(
    ("me", "mine", "hears", "seconds", "expected"),
    [
        (B, VIEW, (), 59.9, False),
        (B, VIEW, (), 60.0, True),
        (C, VIEW, (), 60.0, True),
        (C, VIEW, (B,), 600.0, False),
        (B, FOUR, (D,), 60.0, True),
        (D, FOUR, (B,), 79.9, False),
        (D, FOUR, (B,), 80.0, True),
        (D, FOUR, (B, C), 600.0, False),
        (A, VIEW, (), 60.0, True),
        (A, VIEW, (B,), 600.0, False),
    ],
)
def test_the_first_living_voter_goes_on_without_a_quorum_after_its_patience(
    me: Peer, mine: View, hears: tuple[Peer, ...], seconds: float, expected: bool
) -> None:
    taken = [each for each in beaten(me, mine, hears, seconds) if isinstance(each, TakeUp)]
    assert bool(taken) == expected
    for each in taken:
        new = each.view
        assert (new.leader, new.lineage.root, new.lineage.forks) == (me, "lineage", 1)
        assert set(new.members()) == {me, *hears} and each.tell == hears


@pytest.mark.parametrize(
    "changes",
    [{"quorate_at": NOW + 55.0}, {"own": Held(finished=True)}, {"liveness": alive(D, now=NOW + 60.0)}],
    ids=["a quorum", "the end", "just woken"],
)
def test_there_is_no_fork_with_a_quorum_or_after_the_end_or_after_a_sleep(changes: dict[str, Any]) -> None:
    if "liveness" in changes:
        changes["liveness"].grace = NOW + 50.1
    role, balloting = follow(), Balloting(B, VIEW)
    for now, said in ((NOW, {}), (NOW + 60.0, changes), (NOW + 61.0, {})):
        silent = {"quorate_at": LONG_AGO, "liveness": alive(now=now), "own": changes.get("own", Held())}
        out = role.beat(situation(me=B, now=now, **{**silent, **said}), balloting)
        assert not founds(out)


@pytest.mark.parametrize(
    ("versions", "seconds", "result"),
    [
        ({1: STEP_7}, 59.9, None),
        ({1: STEP_7}, 60.0, TakeUp),
        ({}, 60.0, None),
        ({}, 110.0, None),
        ({}, 110.1, GiveViewUp),
    ],
)
def test_a_member_without_a_vote_forks_with_weights_and_gives_up_without(
    versions: dict[int, Version], seconds: float, result: type | None
) -> None:
    out = beaten(B, ONE_VOTES, (), seconds, own=Held(versions=versions))
    assert [type(each) for each in out if isinstance(each, TakeUp | GiveViewUp)] == ([result] if result else [])


# -- outside of the view


def outside(seconds: float, role: Following | None = None, **changes: Any) -> Outcome:
    """A standby that heard the last word of the view so long ago. A new role has just read the directory."""
    now = NOW + seconds
    s = situation(**{"me": D, "now": now, "quorate_at": NOW, "liveness": alive(now=now), **changes})
    if role is None:
        role = follow()
        role.on_directory(s, ())
    return role.beat(s, None)


LATER, EARLIER = Version(8, "c8", Attempt(2, 10)), Version(6, "c6", Attempt(2, 8))
OTHERS = tuple(Peer(f"b{n}", 1) for n in range(5))


@pytest.mark.parametrize(
    ("others", "seconds", "revives"),
    [
        ({}, 79.9, False),
        ({}, 80.0, True),
        ({E: STEP_7}, 80.0, True),
        ({OTHERS[0]: EARLIER}, 80.0, True),
        ({OTHERS[0]: STEP_7}, 99.9, False),
        ({OTHERS[0]: STEP_7}, 100.0, True),
        ({E: LATER}, 99.9, False),
        ({E: LATER, OTHERS[0]: STEP_7}, 119.9, False),
        ({E: LATER, OTHERS[0]: STEP_7}, 120.0, True),
        (dict.fromkeys(OTHERS, STEP_7), 139.9, False),
        (dict.fromkeys(OTHERS, STEP_7), 140.0, True),
    ],
)
def test_former_holders_go_on_in_the_order_of_their_steps_and_ids(
    others: dict[Peer, Version], seconds: float, revives: bool
) -> None:
    presences = {peer: standby(peer, exact=((0, version),))[peer] for peer, version in others.items()}
    out = outside(seconds, own=Held(versions={1: STEP_7}), presences=presences)
    taken = [each for each in out if isinstance(each, TakeUp)]
    assert bool(taken) == revives and GiveViewUp() not in out
    for each in taken:
        assert (each.view.leader, each.view.holders, each.both) == (D, ((), (D,), ()), True)
        assert set(each.tell) == set(others)


@pytest.mark.parametrize(("read_at", "goes_first"), [(15.0, False), (5.0, True)])
def test_who_once_told_of_later_weights_goes_first_though_a_reading_misses_its_record(
    read_at: float, goes_first: bool
) -> None:
    """Unless a quorum was still heard then, within the lease: its weights may be old by now."""
    role, now = follow(), NOW + read_at
    presences = standby(E, exact=((0, LATER),))
    role.on_directory(situation(me=D, now=now, quorate_at=NOW, presences=presences), ())
    taken = [each for each in outside(99.9, role, own=Held(versions={1: STEP_7})) if isinstance(each, TakeUp)]
    assert bool(taken) == goes_first


@pytest.mark.parametrize(
    "changes",
    [
        {"leaving": "asked"},
        {"own": Held(versions={1: STEP_7}, compute_ready=False)},
        {"own": Held(versions={1: STEP_7}, capacity=0)},
        {"hold": 0},
        {"history": Past(8)},
        {"own": Held()},
        {"liveness": alive(C, now=NOW + 90.0)},
    ],
    ids=["leaves", "no compute", "no capacity", "no wish", "later steps", "no weights", "a voter"],
)
def test_others_do_not_go_on(changes: dict[str, Any]) -> None:
    assert founds(outside(90.0, own=Held(versions={1: STEP_7})))
    assert not founds(outside(90.0, **{"own": Held(versions={1: STEP_7}), **changes}))


@pytest.mark.parametrize(
    ("seconds", "advertised", "given_up"),
    [(20.0, True, False), (20.1, False, False), (90.0, False, False), (90.1, False, True)],
)
def test_a_view_that_nobody_answers_for_is_not_advertised_and_then_given_up(
    seconds: float, advertised: bool, given_up: bool
) -> None:
    out = outside(seconds)
    assert (PublishView(None) not in out) == advertised
    assert (GiveViewUp() in out) == given_up
    assert Search("no member of the run is heard") in out


@pytest.mark.parametrize(
    ("shown", "quorate", "taken"),
    [
        (VIEW, False, False),
        (VIEW, True, True),
        (replace(VIEW, number=4), False, False),
        (FAR, False, True),
        (FORK, False, True),
    ],
)
def test_a_lineage_that_was_given_up_needs_a_quorum_to_be_followed_again(
    shown: View, quorate: bool, taken: bool
) -> None:
    role, s = follow(), situation(me=D, view=None)
    assert GiveViewUp() in outside(91.0, role)
    assert told(role, s, A, shown, quorate) == ([TakeUp(shown, ALL)] if taken else [])
    (answer,) = role.consider(s, shown, shown)
    if shown.lineage == VIEW.lineage:
        assert isinstance(answer, AskAround) and sorted(answer.peers) == sorted(shown.members())
    else:
        assert answer == TakeUp(shown, None)


REBORN = {peer: standby(peer)[peer] for peer in (Peer(name, 2) for name in "abc")}


@pytest.mark.parametrize(
    ("presences", "refused", "read_at", "given_up"),
    [
        (REBORN, (A, B, C), 11.0, True),
        (REBORN, (A, B, C), 10.0, False),
        (REBORN, (A, B), 11.0, False),
        ({peer: REBORN[peer] for peer in list(REBORN)[:2]}, (A, B, C), 11.0, False),
        ({**REBORN, **standby(E, exact=((0, STEP_7),))}, (A, B, C), 11.0, False),
    ],
)
def test_a_view_whose_members_have_all_begun_another_life_is_given_up_early(
    presences: dict[Peer, Presence], refused: tuple[Peer, ...], read_at: float, given_up: bool
) -> None:
    role, liveness = follow(), alive()
    liveness.refused.update(refused)
    role.on_directory(situation(me=D, now=NOW + read_at, presences=presences), (VIEW,))
    assert (GiveViewUp() in outside(12.0, role, presences=presences, liveness=liveness)) == given_up


# -- certificates that the directory lists


NEWER = next_view(VIEW, A, {C}, (), {}, (), "without c")


@pytest.mark.parametrize(
    ("me", "mine", "listed", "seconds", "held", "expected"),
    [
        (D, None, VIEW, 0.0, {}, [TakeUp(VIEW, None)]),
        (D, VIEW, NEWER, 0.0, {}, [AskAround((A, B))]),
        (B, VIEW, NEWER, 0.0, {}, [AskAround((A, B))]),
        (D, NEWER, VIEW, 0.0, {}, []),
        (D, VIEW, VIEW, 0.0, {}, []),
        (B, VIEW, FAR, 0.0, {}, [Beat((D,), True)]),
        (E, VIEW, FAR, 0.0, {}, []),
        (E, VIEW, FAR, 20.0, {}, []),
        (E, VIEW, FAR, 20.1, {}, [YieldTo(FAR, None)]),
        (E, VIEW, FAR, 100.0, {1: STEP_7}, []),
        (E, VIEW, FAR, 100.1, {1: STEP_7}, [YieldTo(FAR, None)]),
    ],
)
def test_a_listed_certificate_is_enough_to_follow_and_never_makes_a_member_yield(
    me: Peer, mine: View | None, listed: View, seconds: float, held: dict[int, Version], expected: list[object]
) -> None:
    own = Held(versions=held)
    s = situation(me=me, view=mine, now=NOW + seconds, quorate_at=NOW, liveness=alive(), own=own)
    answers = [each for each in follow().consider(s, listed, listed) if not isinstance(each, Note)]
    assert [
        AskAround(tuple(sorted(each.peers))) if isinstance(each, AskAround) else each for each in answers
    ] == expected


@pytest.mark.parametrize(("hears", "taken"), [((), True), ((E,), True), ((C,), False), ((A, B, C), False)])
@pytest.mark.parametrize("proof", [None, ALL])
def test_a_record_gives_way_to_a_later_one_where_nobody_that_it_names_is_heard(
    proof: Proof | None, hears: tuple[Peer, ...], taken: bool
) -> None:
    (answer,) = follow(proof=proof).consider(situation(me=D, liveness=alive(*hears)), NEWER, NEWER)
    if taken and proof is None:
        assert answer == TakeUp(NEWER, None)
    else:
        assert isinstance(answer, AskAround) and sorted(answer.peers) == [A, B]


LAST = replace(VIEW, number=2**48 - 1, leader=E, holders=((A,), (B,), (E,)), voters=(E,))
"""What a stranger would have us believe."""
ANOTHER = replace(VIEW, previous="of another view")


@pytest.mark.parametrize("hears", [(), (A, B, C)])
@pytest.mark.parametrize(
    ("sender", "shown", "signers", "taken"),
    [
        (E, LAST, (E,), False),
        (E, ANOTHER, (E,), False),
        (E, replace(ANOTHER, number=4), (A, B, C), False),
        (E, replace(VIEW, number=9), (A,), False),
        (E, replace(VIEW, number=9), (A, E), False),
        (E, replace(VIEW, number=9), (A, C), True),
        (E, NEWER, (B, C), True),
        (C, replace(VIEW, number=9, leader=E, voters=(E,)), (E,), True),
        (C, ANOTHER, (A,), True),
        (C, replace(VIEW, number=2), (A, B, C), False),
    ],
)
def test_who_knows_a_view_from_the_directory_alone_believes_what_follows_and_those_whom_it_names(
    sender: Peer, shown: View, signers: tuple[Peer, ...], taken: bool, hears: tuple[Peer, ...]
) -> None:
    role, s, proof = follow(proof=None), situation(me=D, liveness=alive(*hears)), signed_by(*signers)
    out = role.on_certificate(s, sender, Certificate(shown, True, (), 9, proof), shown)
    if taken:
        assert out == [TakeUp(shown, proof)]
    elif shown.number > VIEW.number:
        assert out == [Beat((sender,), True)], "asked for what leads there"
    else:
        assert out == ([ShowView(sender, shown.number)] if shown.number < VIEW.number else [])


def test_a_proof_of_the_view_that_the_directory_shows_is_kept_whoever_shows_it() -> None:
    role, s = follow(proof=None), situation(me=D)
    assert told(role, s, E, VIEW) == [] and role.proofs.of(VIEW) == ALL
    assert told(role, s, C, ANOTHER) == [], "from now on only what follows counts, whoever shows it"


# -- what stands behind our view


@pytest.mark.parametrize(
    ("sender", "number", "quorate", "lineage", "answer", "vouches"),
    [
        (A, 3, True, "lineage", [], True),
        (A, 3, False, "lineage", [], False),
        (C, 3, True, "lineage", [], False),
        (A, 4, True, "lineage", [Beat((A,), True)], False),
        (A, 2, True, "lineage", [ShowView(A, 2)], False),
        (D, 3, True, "other", [ShowView(D)], False),
    ],
)
def test_only_the_leaders_word_in_this_view_lets_us_vouch_for_it(
    sender: Peer, number: int, quorate: bool, lineage: str, answer: list[object], vouches: bool
) -> None:
    role, s = follow(at=0.0), situation(me=B)
    said = replace(report(number), quorate=quorate, lineage=lineage)
    assert role.on_heartbeat(s, sender, said) == answer
    assert role.vouches(s) == vouches and (role.quorate_at == NOW) == vouches
    assert not role.vouches(situation(me=B, now=NOW + 10.1, quorate_at=NOW + 10.1))
    assert not role.vouches(situation(me=D))
    assert ClearTimer("found") in role.on_view(s, None, VIEW, False) and not role.vouches(s)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"view": None}, 1.0),
        ({"led": Leads(0)}, 1.0),
        ({"led": Leads(7)}, 20.0),
        ({"me": B}, 20.0),
        ({"me": D}, 20.0),
        ({"me": D, "quorate_at": LONG_AGO}, 1.0),
    ],
)
def test_the_directory_is_read_often_while_something_is_missing(changes: dict[str, Any], seconds: float) -> None:
    assert follow().search(situation(**changes)) == [Search("periodic"), SetTimer("search", NOW + seconds)]


@pytest.mark.parametrize(
    ("hears_a_leader", "votes", "asked", "lasts", "forks"),
    [
        (False, False, True, 80, True),
        (True, False, True, 90, False),
        (True, False, True, 240, True),
        (False, True, True, 240, False),
        (False, False, False, 240, False),
    ],
    ids=["it does not vote", "it hears the leader", "it says so for ever", "it votes", "nobody asked it"],
)
def test_a_voter_that_hears_no_leader_and_does_not_vote_counts_as_silent(
    hears_a_leader: bool, votes: bool, asked: bool, lasts: int, forks: bool
) -> None:
    """A leads and is gone. B and C would be a quorum."""
    role, balloting, found = follow(LONG_AGO), Balloting(B, VIEW), list[View]()
    for seconds in range(0, lasts, 2):
        now = NOW + seconds
        liveness = alive(C, now=now)
        said = {C: replace(report(3), quorate=hears_a_leader)}
        s = situation(me=B, now=now, liveness=liveness, reports=said, quorate_at=LONG_AGO)
        if votes:
            balloting.took_part[C] = now - 2.0
        out = role.beat(s, balloting)
        found += [each.view for each in out if isinstance(each, TakeUp)]
        if not asked:
            balloting.asked_since = None
    assert bool(found) is forks
    if found:
        assert found[0].members() == (B,) and found[0].lineage.forks == 1
