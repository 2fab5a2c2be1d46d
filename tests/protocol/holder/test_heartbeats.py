"""Who is sent heartbeats, who is suspected, and the voter's part in a poll: the role alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.holder.heartbeats import ALL_TO_ALL_MAX, Heartbeats, asked, beats_to
from ftnode.protocol.liveness.liveness import Liveness
from ftnode.protocol.situation import Beat, Introduce, Outcome, SetTimer, Situation
from ftnode.protocol.words.effects import Dial, Note, Send
from ftnode.protocol.words.messages import Poll, PollReply, Suspect
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View
from tests.protocol.situations import NOW, SETTINGS, VIEW, A, B, C, D, alive, situation

STEP = 0.5
LEASE, PATIENCE, LISTENS = SETTINGS.lease_seconds, 2 * SETTINGS.heartbeat_seconds, SETTINGS.poll_seconds
PEERS = tuple(Peer(f"p{number:02}", 1) for number in range(ALL_TO_ALL_MAX + 2))
"""The first leads, the first four vote."""


def line(count: int) -> View:
    """Each of so many holds one stage."""
    holders = tuple((peer,) for peer in PEERS[:count])
    return View("run", Lineage("l", 0, count), 3, "", PEERS[0], holders, PEERS[:4], (0,) * count, "why")


def at_b(after: float = 0.0, **changes: Any) -> Situation:
    return situation(me=B, now=NOW + after, **changes)


def said(out: Outcome) -> list[tuple[Peer, str, str]]:
    """Who is suspected of what, and how we put it to the leader."""
    suspects = [(each.to, each.message) for each in out if isinstance(each, Send)]
    assert all(to == A for to, _ in suspects)
    return [(word.peer, word.kind, word.detail) for _, word in suspects if isinstance(word, Suspect)]


def beats(out: Outcome) -> list[Beat]:
    return [each for each in out if isinstance(each, Beat)]


def dialled(out: Outcome) -> list[Peer]:
    return [each.peer for each in out if isinstance(each, Dial)]


# -- to whom


@pytest.mark.parametrize(
    ("count", "sender", "to"),
    [
        (2, 1, {0}),
        (ALL_TO_ALL_MAX, 8, {*range(ALL_TO_ALL_MAX)} - {8}),
        (ALL_TO_ALL_MAX + 1, 8, {0, 1, 7, 9}),
        (ALL_TO_ALL_MAX + 1, 0, {*range(1, ALL_TO_ALL_MAX + 1)}),
        (ALL_TO_ALL_MAX + 1, 1, {0, 2}),
        (ALL_TO_ALL_MAX + 1, 3, {0, 1, 2, 4}),
        (ALL_TO_ALL_MAX + 1, ALL_TO_ALL_MAX, {0, 1, ALL_TO_ALL_MAX - 1}),
    ],
    ids=["two", "as many as all to all", "one more", "one more, the leader", "a voter", "another voter", "the last"],
)
def test_heartbeats_go_to_all_or_to_leader_voters_and_neighbours(count: int, sender: int, to: set[int]) -> None:
    view = line(count)
    assert beats_to(view, PEERS[sender], swap=False) == {PEERS[number] for number in to}
    s = situation(view=view, me=PEERS[sender])
    assert beats(Heartbeats().beat(s, "")) == [Beat(tuple(PEERS[number] for number in sorted(to)), False)]


@pytest.mark.parametrize(("sender", "more"), [(8, set()), (13, set()), (14, {16}), (15, set()), (16, {14})])
def test_with_swapped_routes_the_ends_have_more_neighbours(sender: int, more: set[int]) -> None:
    view = line(ALL_TO_ALL_MAX + 1)
    with_swap, without = (beats_to(view, PEERS[sender], swap) for swap in (True, False))
    assert with_swap - without == {PEERS[number] for number in more}


@pytest.mark.parametrize(
    ("heard", "refused", "to"),
    [((A, B), (), (A,)), ((B, C), (), (A, B, C)), ((), (A,), (B, C, A)), ((), (), (A, B, C))],
    ids=["the leader is heard", "it is not", "it refuses", "nobody is heard"],
)
def test_a_standby_asks_the_leader_or_else_everybody(
    heard: tuple[Peer, ...], refused: tuple[Peer, ...], to: tuple[Peer, ...]
) -> None:
    liveness = alive(*heard)
    liveness.refused.update(refused)
    told = Heartbeats().beat(situation(me=D, liveness=liveness), "")
    assert told == [Beat(to, True), Introduce((A, B, C))], "the leader and the next two voters know what it can do"


@pytest.mark.parametrize("count", [1, ALL_TO_ALL_MAX, ALL_TO_ALL_MAX + 1, ALL_TO_ALL_MAX + 2])
def test_only_so_many_are_asked_whether_they_are_there(count: int) -> None:
    s = situation(me=D)
    s.liveness.refused.add(PEERS[0])
    to = asked(s, (*PEERS[:count], D))
    assert to == [*PEERS[1:count], PEERS[0]][:ALL_TO_ALL_MAX]


@pytest.mark.parametrize(
    ("waiting", "text"),
    [("", None), ("the leader a", "waits for the leader a"), ("halted: no copy", "halted: no copy")],
)
def test_what_we_wait_for_is_said(waiting: str, text: str | None) -> None:
    notes = [each.text for each in Heartbeats().beat(at_b(), waiting) if isinstance(each, Note)]
    assert notes == ([] if text is None else [text])


# -- suspicion


def link(silent: float = 0.0, refused: bool = False, broken: float | None = None) -> Liveness:
    """How B sees C: not heard for so long, refused, its link broken for so long."""
    liveness = alive(A, C)
    liveness.heard[C] = NOW - silent
    if refused:
        liveness.refused.add(C)
    if broken is not None:
        liveness.down[C] = NOW - broken
    return liveness


@pytest.mark.parametrize(
    ("liveness", "words", "dials"),
    [
        (link(), [], []),
        (link(silent=LEASE), [], []),
        (link(silent=LEASE + STEP), [(C, "silent", f"it is silent for {LEASE + STEP:.1f} s")], []),
        (link(refused=True), [(C, "silent", "its address refuses for 0.0 s")], []),
        (link(broken=PATIENCE), [], [C]),
        (link(broken=PATIENCE + STEP), [(C, "broken", f"the link is broken for {PATIENCE + STEP:.1f} s")], [C]),
        (
            link(silent=LEASE + STEP, broken=LEASE),
            [(C, "silent", f"it is silent for {LEASE + STEP:.1f} s")],
            [],
        ),
    ],
    ids=["well", "a lease", "silent", "refused", "just broken", "broken", "silent and broken"],
)
def test_who_is_suspected(liveness: Liveness, words: list[tuple[Peer, str, str]], dials: list[Peer]) -> None:
    out = Heartbeats().beat(at_b(liveness=liveness), "")
    assert said(out) == words and dialled(out) == dials
    assert said(Heartbeats().beat(situation(me=D, liveness=liveness), "")) == [], "a standby suspects nobody"


def test_nobody_tells_the_leader_that_the_leader_is_silent() -> None:
    assert said(Heartbeats().beat(at_b(liveness=alive(C)), "")) == []


def test_only_those_that_owe_us_heartbeats_are_suspected() -> None:
    view = line(ALL_TO_ALL_MAX + 1)
    s = situation(view=view, me=PEERS[8], liveness=alive(PEERS[0]))
    words = [each.message for each in Heartbeats().beat(s, "") if isinstance(each, Send)]
    assert [word.peer for word in words if isinstance(word, Suspect)] == [PEERS[7], PEERS[9]]


@pytest.mark.parametrize(
    ("me", "peer", "refused", "words", "dials"),
    [
        (B, C, False, [], [C]),
        (B, C, True, [(C, "silent", "nobody listens")], []),
        (B, A, False, [], [A]),
        (B, A, True, [], []),
        (B, D, True, [], []),
        (B, D, False, [], []),
        (D, C, False, [], []),
    ],
    ids=["broken", "refused", "the leader's", "the leader refuses", "a standby refuses", "a standby's", "we stand by"],
)
def test_a_link_that_goes_down(
    me: Peer, peer: Peer, refused: bool, words: list[tuple[Peer, str, str]], dials: list[Peer]
) -> None:
    out = Heartbeats().on_link_down(situation(me=me), peer, refused, "nobody listens")
    assert said(out) == words and dialled(out) == dials and len(out) == len(words) + len(dials)


# -- polls

POLL = Poll("lineage", 3, 5, C)


def reply(heard: bool, refused: bool = False, peer: Peer = C, number: int = 5) -> Send:
    return Send(A, PollReply("lineage", 3, number, peer, heard, refused), None)


def polled(poll: Poll = POLL, **changes: Any) -> Heartbeats:
    watch = Heartbeats()
    assert watch.on_poll(at_b(**changes), A, poll) == [
        Beat((poll.peer,), True),
        SetTimer("errand", NOW + LISTENS, keep=True),
    ]
    return watch


@pytest.mark.parametrize(
    ("poll", "sender", "changes", "answer"),
    [
        (POLL, C, {}, []),
        (replace(POLL, view=2), A, {}, []),
        (replace(POLL, lineage="another"), A, {}, []),
        (replace(POLL, peer=D), A, {}, []),
        (POLL, A, {"view": None}, []),
        (replace(POLL, peer=B), A, {}, [reply(True, peer=B)]),
        (POLL, A, {"liveness": link(refused=True)}, [reply(False, refused=True)]),
    ],
    ids=["not the leader", "an older view", "another lineage", "no member", "no view", "about ourselves", "refused"],
)
def test_a_poll_that_needs_no_listening(poll: Poll, sender: Peer, changes: dict[str, Any], answer: list[Send]) -> None:
    watch = Heartbeats()
    assert watch.on_poll(at_b(**changes), sender, poll) == answer
    assert not watch.errands


def test_the_suspect_is_heard() -> None:
    watch = polled()
    assert watch.on_message(at_b(STEP), A) == [], "that is not the suspect"
    assert watch.on_message(at_b(STEP), C) == [reply(True)]
    assert watch.on_message(at_b(2 * STEP), C) == [] and watch.errands_due(at_b(LISTENS)) == [], "it is said once"


@pytest.mark.parametrize(
    ("peer", "refused", "answer"),
    [(C, True, [reply(False)]), (C, False, []), (A, True, [])],
    ids=["the suspect refuses", "its link breaks", "another refuses"],
)
def test_the_suspect_refuses_while_we_listen(peer: Peer, refused: bool, answer: list[Send]) -> None:
    watch = polled()
    out = watch.on_link_down(at_b(STEP), peer, refused, "nobody listens")
    assert [each for each in out if isinstance(each, Send) and isinstance(each.message, PollReply)] == answer
    assert bool(watch.errands) != bool(answer)


@pytest.mark.parametrize(
    ("after", "answer"),
    [
        (LISTENS - STEP, [SetTimer("errand", NOW + LISTENS)]),
        (LISTENS, [reply(False)]),
        (LISTENS + STEP, [reply(False)]),
    ],
    ids=["there is time", "the deadline", "late"],
)
def test_the_suspect_is_not_heard(after: float, answer: list[Send | SetTimer]) -> None:
    watch = polled()
    assert watch.errands_due(at_b(after)) == answer
    late = watch.on_message(at_b(after), C)
    assert (late == [reply(True)]) == (after < LISTENS), "whoever comes later than the deadline is not heard"


def test_two_polls_each_have_their_deadline_and_a_view_ends_both() -> None:
    watch = polled()
    watch.on_poll(at_b(STEP), A, replace(POLL, peer=A, number=6))
    assert watch.errands_due(at_b(LISTENS)) == [reply(False), SetTimer("errand", NOW + STEP + LISTENS)]
    watch.on_view()
    assert watch.errands_due(at_b(2 * LISTENS)) == []


def test_of_two_polls_about_one_peer_the_newer_is_answered() -> None:
    watch = polled()
    watch.on_poll(at_b(STEP), A, replace(POLL, number=6))
    assert watch.on_message(at_b(STEP), C) == [reply(True, number=6)]


def test_a_view_of_one_has_nobody_to_watch() -> None:
    alone = replace(VIEW, holders=((A,), (A,), (A,)), voters=(A,))
    assert Heartbeats().beat(situation(view=alone, liveness=alive()), "") == []
