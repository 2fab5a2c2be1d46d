"""Nobody fills the log of another."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from ftnode.node.links.peer_lines import OF_A_PEER, OF_ALL, PeerLines, PeerLog


def test_one_peer_causes_some_lines_and_the_next_one_says_how_many_are_missing() -> None:
    lines = PeerLines()
    said = [lines.passed("a", "broke it", 1.0) for _ in range(1000)]
    assert said[: int(OF_A_PEER.messages_at_once)] == ["broke it"] * int(OF_A_PEER.messages_at_once)
    assert not any(said[int(OF_A_PEER.messages_at_once) :])
    left_out = 1000 - int(OF_A_PEER.messages_at_once)
    assert lines.passed("b", "hello", 1.0) == f"hello (and {left_out} lines about peers that are left out)"
    assert lines.passed("b", "hello", 1.0) == "hello"
    assert lines.passed("a", "again", 1.0 + 1 / OF_A_PEER.messages) == "again"


def test_many_peers_together_cause_some_lines() -> None:
    lines, seconds = PeerLines(), 100
    said = [lines.passed(str(n), "hello", n / 100) for n in range(100 * seconds)]
    assert sum(map(bool, said)) <= OF_ALL.messages_at_once + seconds * OF_ALL.messages + 1


def test_a_log_has_the_lines_that_passed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        told = PeerLog(logging.getLogger("test"))
        for _ in range(100):
            told.say(logging.WARNING, "a", "100 % of it broke")

    with caplog.at_level(logging.INFO):
        trio.run(main, clock=trio.testing.MockClock())
    assert caplog.text.count("100 % of it broke") == OF_A_PEER.messages_at_once
