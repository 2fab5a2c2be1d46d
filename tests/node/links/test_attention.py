"""How much a peer may say: an honest one never notices, a flood is known as such before it costs anything."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ftnode.node.links.attention import (
    LARGE_WORDS,
    MEMBER,
    PEERS_MAX,
    SMALL_BYTES,
    SMALL_WORDS,
    STRANGER,
    VOUCHED_SECONDS,
    Allowance,
    Attention,
    Budget,
    Flood,
)
from ftnode.protocol.words.types import Peer

MEMBER_PEER, STRANGER_PEER, LEARNER = Peer("member", 1), Peer("stranger", 1), Peer("learner", 1)
HEARTBEAT_BYTES, CERTIFICATE_BYTES = 300, 100_000


def attention() -> Attention:
    return Attention(lambda peer: peer == MEMBER_PEER, lambda peer: peer == LEARNER)


@pytest.mark.parametrize(
    ("size", "after"),
    [(0, STRANGER.messages_at_once), (48_000, STRANGER.bytes_at_once // 48_000), (1 << 17, 16)],
)
def test_a_stranger_is_a_flood_as_soon_as_its_budget_is_spent(size: int, after: float) -> None:
    ours = attention()
    for _ in range(int(after)):
        assert ours.pause(STRANGER_PEER, size, 1.0) is None
    with pytest.raises(Flood):
        ours.pause(STRANGER_PEER, size, 1.0)
    assert ours.pause(Peer("other", 1), size, 1.0) is None


@pytest.mark.parametrize(
    ("size", "per_second"), [(HEARTBEAT_BYTES, 10.0), (20_000, 1.0), (CERTIFICATE_BYTES, 0.3), (SMALL_BYTES, 5.0)]
)
def test_an_honest_stranger_may_go_on_for_ever(size: int, per_second: float) -> None:
    """A standby's heartbeats, and certificates of a lineage that we meet."""
    ours = attention()
    for number in range(5000):
        assert ours.pause(STRANGER_PEER, size, number / per_second) is None


def test_a_large_lineage_may_call_for_a_while_once_a_heartbeat() -> None:
    ours = attention()
    for second in range(25):
        assert ours.pause(STRANGER_PEER, CERTIFICATE_BYTES, float(second)) is None


def test_a_new_life_has_the_budget_of_the_one_before() -> None:
    ours = attention()
    for life in range(int(STRANGER.messages_at_once)):
        ours.pause(Peer("stranger", life), 0, 1.0)
    with pytest.raises(Flood):
        ours.pause(Peer("stranger", -1), 0, 1.0)


def test_a_member_is_read_no_faster_and_never_struck() -> None:
    ours = attention()
    pauses = [ours.pause(MEMBER_PEER, 48_000, 1.0) for _ in range(3 * int(MEMBER.bytes_at_once) // 48_000)]
    assert pauses[0] == 0 and not any(pause is None for pause in pauses)
    assert pauses[-1] == pytest.approx(2 * MEMBER.bytes_at_once / MEMBER.bytes, rel=0.01)


def test_a_member_says_after_a_pause_what_has_piled_up() -> None:
    """A queue of a link has a thousand frames at most (link.py)."""
    ours = attention()
    assert not any(ours.pause(MEMBER_PEER, 16_000, 1.0) for _ in range(1024))


def test_a_learner_is_looked_for_once_in_a_while() -> None:
    looked = 0

    def vouches(peer: Peer) -> bool:
        nonlocal looked
        looked += 1
        return peer == LEARNER

    ours = Attention(lambda peer: False, vouches)
    rate = 100
    seconds = 20
    for number in range(rate * seconds):
        assert ours.pause(LEARNER, HEARTBEAT_BYTES, number / rate) in (None, 0.0)
    assert 1 <= looked <= 1 + seconds / VOUCHED_SECONDS


def test_it_is_bounded_who_is_remembered() -> None:
    ours = attention()
    for number in range(2 * PEERS_MAX):
        ours.pause(Peer(str(number), 1), 10, 1.0)
    assert len(ours._strangers) == PEERS_MAX


def test_an_allowance_fills_up_to_what_may_come_at_once() -> None:
    allowance = Allowance(Budget(10, 100, 20, 1000), 0.0)
    assert allowance.spend(1000, 0.0) == 0
    assert allowance.spend(100, 0.0) == pytest.approx(1.0)
    assert allowance.spend(100, 1.0) == pytest.approx(1.0)
    assert allowance.spend(1000, 1000.0) == 0
    assert allowance.spend(50, 1000.0) == pytest.approx(0.5)
    assert allowance.spend(0, 999.0) == pytest.approx(0.5)  # time that goes back brings nothing


def _said(count: int, size: int, others: int = 0, other_size: int = 0) -> float:
    """Seconds until the last of `count` strangers has been heard, when `others` came before them."""

    async def main() -> float:
        ours = attention()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(others):
                nursery.start_soon(ours.word, Peer(f"other {number}", 1), other_size)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as waited:
                for number in range(count):
                    waited.start_soon(ours.word, Peer(str(number), 1), size)
            took = trio.current_time() - began
            nursery.cancel_scope.cancel()
        return took

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_all_strangers_together_have_a_budget() -> None:
    late = 512
    assert _said(int(SMALL_WORDS.messages_at_once), HEARTBEAT_BYTES) == 0
    took = _said(int(SMALL_WORDS.messages_at_once) + late, HEARTBEAT_BYTES)
    assert took == pytest.approx(late / SMALL_WORDS.messages, rel=0.1)
    assert _said(100, CERTIFICATE_BYTES) == pytest.approx(
        (100 * CERTIFICATE_BYTES - LARGE_WORDS.bytes_at_once) / LARGE_WORDS.bytes, rel=0.1
    )


def test_a_newcomers_heartbeat_does_not_wait_behind_the_certificates_of_others() -> None:
    assert _said(1, HEARTBEAT_BYTES, others=200, other_size=CERTIFICATE_BYTES) < 0.1
