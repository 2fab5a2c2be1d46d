"""Whom a leader counts on that did not lend what it tells of, and when it asks again."""

from __future__ import annotations

from ftnode.protocol.leader.leader_memory import DOUBLINGS_MAX, FAILURES_MAX, LeaderMemory
from ftnode.protocol.words.types import Attempt, Peer, Version

A, DONOR, OTHER = Peer("a", 1), Peer("donor", 1), Peer("other", 1)
WAIT = 10.0


def version(step: int) -> Version:
    return Version(step, f"c{step}", Attempt(0, step))


def test_two_versions_that_were_not_lent_twice_make_a_peer_doubted() -> None:
    memory = LeaderMemory()
    for step in (3, 3, 6):
        memory.not_lent([DONOR, OTHER], 0, version(step), 1.0)
    assert not memory.doubted()
    memory.not_lent([DONOR], 0, version(6), 1.0)
    assert memory.doubted() == {"donor"}


def test_who_tells_of_another_version_each_time_is_doubted_too() -> None:
    memory = LeaderMemory()
    for step in range(1, FAILURES_MAX**2 + 1):
        assert not memory.doubted()
        memory.not_lent([DONOR], 0, version(step), 1.0)
    assert memory.doubted() == {"donor"}


def test_many_stages_of_one_version_that_were_not_lent_once_are_one_failure() -> None:
    memory = LeaderMemory()
    for stage in range(20):
        memory.not_lent([DONOR], stage, version(3), 1.0)
    assert not memory.doubted()


def test_it_is_forgiven_after_waits_that_double() -> None:
    memory, now, waits = LeaderMemory(), 0.0, []
    assert not memory.forgive(now, WAIT), "nothing to forgive"
    for _ in range(DOUBLINGS_MAX + 2):
        memory.not_lent([DONOR], 0, version(3), now)
        since = now
        while not memory.forgive(now, WAIT):
            now += WAIT
        waits.append((now - since) / WAIT)
        assert not memory.broken
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0]


def test_a_network_whose_newcomers_go_is_asked_later_and_later_and_others_are_not() -> None:
    memory, lease, now, waits = LeaderMemory(), 10.0, 1000.0, list[float]()
    for life in range(9):
        peer = Peer("p", life)
        memory.came_and_went([A, peer], [A], {peer: "n"}, now, lease)
        memory.came_and_went([A], [A, peer], {peer: "n"}, now + 1.0, lease)
        waits.append(memory.crowd_asked_at("n", lease) - now - 1.0)
        now += waits[-1] + 1.0
    assert waits == [lease * 2.0 ** min(count, 6) for count in range(1, 10)]
    assert memory.crowd_asked_at("m", lease) < 0 and memory.joined == {}


def test_who_stayed_for_long_is_no_reason_and_those_of_a_moment_are_one() -> None:
    memory, lease = LeaderMemory(), 10.0
    crowd = [Peer("p", life) for life in range(5)]
    networks = dict.fromkeys(crowd, "n")
    memory.came_and_went([A, *crowd], [A], networks, 0.0, lease)
    for left in range(len(crowd)):
        memory.came_and_went([A, *crowd[left + 1 :]], [A, *crowd[left:]], networks, 1.0 + left, lease)
    assert memory.crowds_failed == {"n": (5.0, 1)}
    memory.came_and_went([A, *crowd], [A], networks, 100.0, lease)
    memory.came_and_went([A], [A, *crowd], networks, 100.0 + 65 * lease, lease)
    assert memory.crowds_failed == {"n": (5.0, 1)}


def test_where_nothing_is_known_of_a_newcomer_no_crowd_is_to_blame() -> None:
    memory = LeaderMemory()
    memory.crowd_failed("", 0.0, 10.0)
    assert memory.crowds_failed == {}
