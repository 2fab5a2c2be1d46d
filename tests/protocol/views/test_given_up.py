"""When a view belongs to the past: all of its members live anew, and nobody who lives on has weights (rule 37)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from ftnode.protocol.participant import Participant
from ftnode.protocol.views.succession import genesis
from ftnode.protocol.words.effects import Install, PublishView, Send
from ftnode.protocol.words.events import ComputeReady, Directory, Event, Installed, LinkDown, Received, Wake
from ftnode.protocol.words.messages import Begin, Certificate, Heartbeat
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import View

SETTINGS = Settings("r", stages=2, steps=100, microbatches=2, window=1)
LEASE, PATIENCE = SETTINGS.lease_seconds, SETTINGS.minority_wait_seconds
FOUNDED = 2 * LEASE + 5 * SETTINGS.found_window_seconds
"""By then, of its own accord: a lease, a standby's beat or two, and the windows in which others may found the run."""
ME, BEFORE, OTHER, AGAIN = Peer("me", 2), Peer("me", 1), Peer("other", 1), Peer("other", 2)
VIEW = replace(genesis("r", BEFORE, (0, 1), 3), number=4, holders=((BEFORE,), (BEFORE,), (OTHER,)))
NEWEST = Version(6, "c", Attempt(0, 6))


def presence(peer: Peer) -> Presence:
    return Presence(peer, ("/x",), "", -1, 1, True, (), (), (), 1.0, ())


HERE, THERE = presence(AGAIN), presence(Peer("standby", 1))
STILL, FORMER = presence(OTHER), replace(THERE, exact=((1, NEWEST),))
LIVES_ON = replace(VIEW, number=3, holders=((BEFORE,), (OTHER,), (THERE.peer,)))
LATER = replace(LIVES_ON, number=5, leader=THERE.peer, voters=(BEFORE, THERE.peer))


class Life:
    """One that starts again. The directory says the same for ever, and earlier lives refuse."""

    def __init__(self, *presences: Presence, views: Sequence[View] = (VIEW,), settings: Settings = SETTINGS) -> None:
        self.core, self.now = Participant(ME, settings, Random(1), hold=3), 0.0
        self.directory = Directory(presences, tuple(views))
        self.over = {OTHER}
        self.withdrawn = False
        self.installs: list[Install] = []
        self.asked: list[Peer] = []
        self.do(ComputeReady(3, True, 1.0))

    def do(self, event: Event) -> None:
        effects = self.core.handle(event, self.now)
        self.withdrawn |= PublishView(None) in effects
        self.installs += [effect for effect in effects if isinstance(effect, Install)]
        asked = [effect.to for effect in effects if isinstance(effect, Send)]
        self.asked += asked
        for peer in sorted(self.over.intersection(asked)):
            self.do(LinkDown(peer, True, "another life answers"))

    def goes_on(self, seconds: float) -> None:
        """Time passes, and the directory is read each second."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.do(self.directory)
            self.do(Wake())

    def gives_up(self) -> None:
        self.goes_on(1.0)
        assert self.follows
        while self.follows and self.now < 2 * LEASE:
            self.goes_on(1.0)
        assert self.core.view is None

    @property
    def follows(self) -> bool:
        return self.core.view is not None and self.core.view.lineage == VIEW.lineage

    @property
    def founded(self) -> bool:
        return self.core.view is not None and self.core.view.leader == ME


def test_who_is_alone_with_earlier_lives_looks_for_them_for_a_lease() -> None:
    """And founds the run, though their certificate is in the directory for ever."""
    life = Life(HERE)
    life.goes_on(1.0)
    life.goes_on(LEASE)
    assert life.follows, "somebody may tell of a later view"
    life.gives_up()
    assert life.withdrawn
    life.goes_on(FOUNDED - life.now)
    assert life.founded


def test_of_a_large_view_all_members_are_asked() -> None:
    """A standby asks 16 at a time."""
    members = [BEFORE, *(Peer(f"p{index:02}", 1) for index in range(40))]
    view = replace(VIEW, holders=tuple((peer,) for peer in members), epochs=(0,) * len(members))
    settings = replace(SETTINGS, stages=len(members) - 1)
    life = Life(*(presence(Peer(peer.id, 2)) for peer in members[1:]), views=[view], settings=settings)
    life.over = set(members)
    life.gives_up()
    assert set(life.asked) == set(members)


@pytest.mark.parametrize(
    ("presences", "views", "refuses"),
    [
        ((HERE,), [VIEW], False),
        ((), [VIEW], True),
        ((THERE,), [VIEW], True),
        ((HERE, STILL), [VIEW], True),
        ((HERE, FORMER), [VIEW], True),
        ((HERE, THERE), [VIEW, LIVES_ON], True),
    ],
    ids=["silent", "gone", "others-came", "told-of", "former-holder", "removed-before"],
)
def test_who_may_still_go_on_is_looked_for(presences: Sequence[Presence], views: list[View], refuses: bool) -> None:
    life = Life(*presences, views=views)
    life.over = {OTHER} if refuses else set()
    life.goes_on(PATIENCE)
    assert life.follows
    life.goes_on(4 * LEASE)
    assert not life.follows


def test_a_member_that_is_heard_is_followed_whatever_the_directory_says() -> None:
    life = Life(HERE)
    beat = Heartbeat(VIEW.lineage.id, VIEW.number, False, 0, (), 0.0, False, (), (), "", ())
    for _ in range(6):
        life.goes_on(LEASE / 2)
        life.do(Received(OTHER, beat, None))
    assert life.follows


def test_nothing_is_decided_by_an_old_reading_of_the_directory() -> None:
    """A standby reads it seldom; who was there then may have nothing to do with who is there now."""
    life = Life(HERE)
    life.goes_on(3.0)
    life.directory = Directory((), ())
    for _ in range(int(PATIENCE)):
        life.now += 1.0
        life.do(Wake())
    assert life.follows


@pytest.mark.parametrize("shown", [LIVES_ON, LATER], ids=["removed-before", "newcomer"])
def test_who_is_told_of_after_it_was_given_up_keeps_us_from_founding(shown: View) -> None:
    """And its own word brings us back, quorum or not: it lives, and is a member."""
    life = Life(HERE)
    life.gives_up()
    life.directory = Directory((HERE, THERE), (VIEW, shown))
    life.asked.clear()
    life.goes_on(PATIENCE)
    assert life.core.view is None
    assert THERE.peer in life.asked and OTHER not in life.asked, "who refused is not asked again"
    standby = Received(Peer("another", 1), Certificate(shown, False, ()), None)
    life.do(standby)
    assert life.core.view is None, "it knows no more than we do"
    life.do(Received(THERE.peer, Certificate(shown, False, ()), None))
    assert life.follows


def test_weights_that_are_told_of_late_are_given_their_time() -> None:
    life = Life(HERE)
    life.gives_up()
    life.directory = Directory((HERE, FORMER), ())
    life.goes_on(PATIENCE)
    assert life.core.view is None
    life.goes_on(FOUNDED + LEASE)
    assert life.founded, "anybody may say so"


def test_a_certificate_that_one_reading_misses_is_still_of_the_past() -> None:
    life = Life(HERE)
    life.gives_up()
    found, life.directory = life.directory, Directory((HERE,), ())
    life.goes_on(1.0)
    life.directory = found
    life.goes_on(FOUNDED - life.now)
    assert life.founded


def test_two_lineages_of_the_past_are_not_followed_in_turn() -> None:
    """Somebody who still looks for the members of one tells us of it."""
    lineage = genesis("r", OTHER, (0,), 3).lineage
    life = Life(HERE)
    life.gives_up()
    life.directory = Directory((HERE,), (VIEW, replace(VIEW, lineage=lineage)))
    life.goes_on(1.0)
    assert life.core.view is not None and life.core.view.lineage == lineage
    life.goes_on(1.6 * LEASE)
    assert life.core.view is None
    life.do(Received(Peer("another", 1), Certificate(VIEW, False, ()), None))
    assert life.core.view is None


def test_a_liar_cannot_have_a_lineage_given_up_that_others_are_in() -> None:
    """It says that it alone is in a far later view, and begins another life."""
    liar, again = Peer("liar", 1), Peer("liar", 2)
    alone = replace(VIEW, number=10**6, leader=liar, holders=((liar,),) * 3, voters=(liar,))
    life = Life(STILL, presence(again), views=[VIEW, alone])
    life.over = {liar}
    life.goes_on(PATIENCE)
    assert life.follows


def test_what_a_learner_fetches_goes_with_the_view() -> None:
    """It comes after all, when there is no view to learn it for."""
    again, second = Peer("third", 2), Peer("third", 1)
    view = replace(VIEW, holders=((OTHER,), (OTHER,), (second,)), leader=OTHER, voters=(OTHER, second))
    life = Life(STILL, presence(second), views=[view], settings=replace(SETTINGS, replicas=2))
    life.over = set()
    life.goes_on(2.0)
    beat = Heartbeat(view.lineage.id, view.number, True, 7, (), 0.0, False, (), (), "", ())
    life.do(Received(OTHER, beat, None))
    paths = tuple((microbatch, (OTHER, OTHER, second, OTHER)) for microbatch in (0, 1))
    attempt, base = Attempt(view.number, 7), replace(NEWEST, attempt=Attempt(view.number, 6))
    begin = Begin(
        view.lineage.id, view.number, 7, attempt, base, False, False, True, False, 1, ((OTHER, (0, 1)),), paths, (), (),
        ((2, ME),),
    )  # fmt: skip
    life.do(Received(OTHER, begin, None))
    assert [effect.plan.stage for effect in life.installs] == [2] and life.core.holder.learning == (2,)
    life.directory, life.over = Directory((HERE, presence(again)), (view,)), {OTHER, second}
    life.goes_on(1.4 * LEASE)
    assert life.core.view is None and not life.core.holder.learning
    life.do(Installed(2, base, 1, 1.0, 0.0, "d"))
    assert not life.core.holder.versions
