"""Whom a leader counts on that did not lend what it tells of, and when it asks again."""

from __future__ import annotations

from ftnode.protocol.leader.leader_memory import DOUBLINGS_MAX, FAILURES_MAX, LeaderMemory
from ftnode.protocol.words.types import Attempt, Peer, Version

DONOR, OTHER = Peer("donor", 1), Peer("other", 1)
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
