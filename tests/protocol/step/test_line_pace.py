"""How long a line is busy with a microbatch, by word of its tensors."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest

from ftnode.protocol.step.line_pace import SHORTEST_SECONDS, LinePace
from ftnode.protocol.words.types import Direction, Peer

NEAR, FAR = Peer("near", 1), Peer("far", 1)
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


def words(
    made: Iterable[tuple[float, Peer]], tensor: float, ways: Mapping[Peer, float]
) -> list[tuple[float, Peer, float]]:
    """(made, to, when its word comes) of tensors on one line that takes `tensor` seconds for each, in the order of the
    words. `ways`: seconds there and back."""
    free, found = 0.0, []
    for at, peer in made:
        free = max(free, at) + tensor
        found.append((at, peer, free + ways[peer]))
    return sorted(found, key=lambda word: word[2])


def measured(line: LinePace, all_words: Iterable[tuple[float, Peer, float]]) -> float:
    """Seconds of the line for one tensor."""
    for made, peer, now in all_words:
        line.made(1, FORWARD, True)
        line.acknowledged(peer, made, False, now)
    return line.seconds(1)


def burst(count: int, start: float = 0.0, apart: float = 0.01) -> list[tuple[float, Peer]]:
    return [(start + apart * number, (NEAR, FAR)[number % 2]) for number in range(count)]


@pytest.mark.parametrize("far", [0.06, 0.2, 0.3])
@pytest.mark.parametrize("tensor", [0.1, 1.0, 4.0])
def test_a_queue_shows_what_the_line_takes_for_a_tensor(tensor: float, far: float) -> None:
    line = LinePace()
    ways = {NEAR: 0.06, FAR: far}
    for step in range(3):
        found = measured(line, words(burst(40, 1000.0 * step), tensor, ways))
    assert found == pytest.approx(tensor, rel=0.15)


@pytest.mark.parametrize("apart", [0.02, 0.1, 0.7])
def test_a_delay_alone_is_no_time_of_the_line(apart: float) -> None:
    """Several are on their way at once, and the way takes a fifth more or less."""
    chance = random.Random(1)
    line, ways = LinePace(), {NEAR: 0.01, FAR: 0.2}
    found = [
        (made, peer, word + ways[peer] * 0.2 * chance.random())
        for made, peer, word in words(burst(200, apart=apart), 0.0, ways)
    ]
    assert measured(line, sorted(found, key=lambda word: word[2])) == 0.0


def test_what_waits_for_its_receiver_alone_is_not_counted() -> None:
    """Word of it is late, and nothing else was on its way."""
    line = LinePace()
    found = [(10.0 * number, NEAR, 10.0 * number + (5.0 if number % 3 == 2 else 0.1)) for number in range(30)]
    assert measured(line, found) == 0.0


def test_tensors_that_share_the_line_count_like_those_in_a_row() -> None:
    """Two at a time, each with half of the line: their words come in pairs."""
    line, found = LinePace(), []
    for pair in range(30):
        found += [(0.0, NEAR, 2.0 * (pair + 1) + 0.06), (0.0, FAR, 2.0 * (pair + 1) + 0.07)]
    assert measured(line, found) == pytest.approx(1.0, rel=0.2)


def test_a_line_that_got_faster_shows_also_without_a_queue() -> None:
    line, ways = LinePace(), {NEAR: 0.06, FAR: 0.06}
    assert measured(line, words(burst(20), 4.0, ways)) == pytest.approx(4.0, rel=0.05)
    later = [(1000.0 + 10 * number, NEAR) for number in range(40)]
    assert measured(line, words(later, 0.4, ways)) < 1.0


def test_a_line_that_got_thinner_shows() -> None:
    line, ways = LinePace(), {NEAR: 0.06, FAR: 0.06}
    assert measured(line, words(burst(20), 0.4, ways)) == pytest.approx(0.4, rel=0.05)
    assert measured(line, words(burst(20, 1000.0), 4.0, ways)) > 2.5


def test_one_that_sleeps_is_forgotten_at_the_next_step() -> None:
    """All words are late by a minute, once."""
    line, ways = LinePace(), {NEAR: 0.06, FAR: 0.06}
    measured(line, words(burst(20), 0.4, ways))
    late = [(made, peer, max(word, 1060.0)) for made, peer, word in words(burst(20, 1000.0), 0.4, ways)]
    measured(line, late)
    for step in range(2, 5):
        found = measured(line, words(burst(20, 1000.0 * step), 0.4, ways))
    assert found == pytest.approx(0.4, rel=0.2)


def test_the_way_of_long_ago_is_forgotten() -> None:
    """The route to a peer got longer, and nothing waits."""
    line = LinePace()
    measured(line, words(burst(20, apart=0.1), 0.0, {NEAR: 0.01, FAR: 0.01}))
    longer = words(burst(300, 2 * SHORTEST_SECONDS + 1, apart=0.1), 0.0, {NEAR: 0.4, FAR: 0.4})
    assert measured(line, longer) == 0.0


def test_what_was_sent_again_says_nothing() -> None:
    line = LinePace()
    for made, peer, now in words(burst(20), 1.0, {NEAR: 0.06, FAR: 0.06}):
        line.made(1, FORWARD, True)
        line.acknowledged(peer, made, True, now)
    assert line.seconds(1) == 0.0


def test_only_what_leaves_the_peer_counts() -> None:
    """Of stage 1 both tensors go to others. Stage 2 gives one of its own to stage 1, and stage 3 both."""
    line = LinePace()
    measured(line, words(burst(20), 1.0, {NEAR: 0.06, FAR: 0.06}))
    for stage, forward, backward in ((1, True, True), (2, True, False), (3, False, False)):
        line.made(stage, FORWARD, forward)
        line.made(stage, BACKWARD, backward)
    assert [line.seconds(stage) for stage in (1, 2, 3, 4)] == pytest.approx([2.0, 1.0, 0.0, 0.0], rel=0.05)


def test_who_is_gone_is_forgotten() -> None:
    line = LinePace()
    measured(line, words(burst(20), 1.0, {NEAR: 0.06, FAR: 0.06}))
    line.keep_only({NEAR})
    assert len(line._shortest) == 1 and line.seconds(1) == pytest.approx(1.0, rel=0.05)
