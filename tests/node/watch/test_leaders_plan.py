"""Whoever is asked, a look says what the leader chose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.watch import leaders_plan
from ftnode.node.watch.leaders_plan import AGAIN_SECONDS, ANSWER_SECONDS, FRESH_SECONDS, LeadersPlan
from ftnode.node.watch.light_client import Unanswered, as_told
from ftnode.node.watch.status import PeerRow, Speaker, SwarmStatus

PLAN = "b for stage 2: a step takes about 0.2 s then (rejected: stage 1: 0.3 s)"
LEADER = PeerRow("leader", "leader", (0,), ("/ip4/10.0.0.1/tcp/1",), "direct", None, "", None)
SAID = SwarmStatus(Speaker("other", "", "", ""), run="r", leader="leader", peers=(LEADER,))
LED = replace(SAID, speaker=Speaker("leader", "", "", ""), plan=PLAN)


class Leader:
    """Answers with a status; None: not at all; "late": never, though it has opened a stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, says: SwarmStatus | str | None = LED) -> None:
        self.says = says
        self.asked: list[PeerAddress] = []
        monkeypatch.setattr(leaders_plan, "open_stream", self.open_stream)
        monkeypatch.setattr(leaders_plan, "ask_status", self.ask_status)

    @asynccontextmanager
    async def open_stream(self, host: Any, peer: PeerAddress, seconds: float) -> AsyncIterator[None]:
        self.asked.append(peer)
        if self.says is None:
            raise Unanswered("not here")
        yield

    async def ask_status(self, stream: Any) -> SwarmStatus:
        if not isinstance(self.says, SwarmStatus):
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return self.says


def plans(status: SwarmStatus, times: tuple[float, ...] = (0.0,)) -> list[str]:
    """What looks at these seconds have."""

    async def main() -> list[str]:
        look, found = LeadersPlan(as_told), []
        for at in times:
            await trio.sleep_until(at)
            found.append((await look.added(None, PeerAddress("other", ()), status)).plan)  # type: ignore[arg-type]
        return found

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_leader_is_asked_where_somebody_else_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch)
    assert plans(SAID) == [PLAN] and leader.asked == [PeerAddress("leader", LEADER.addresses)]
    assert plans(SAID, (0.0, 1.0, 2.0, FRESH_SECONDS)) == [PLAN] * 4 and len(leader.asked) == 3, "not at each look"


@pytest.mark.parametrize(
    "status", [LED, replace(LED, plan=""), replace(SAID, peers=()), replace(SAID, leader="")],
    ids=["it has said so", "it has no plan", "nobody knows where it is", "there is none"],
)  # fmt: skip
def test_nobody_is_asked_in_vain(status: SwarmStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch)
    assert plans(status) == [status.plan] and not leader.asked


@pytest.mark.parametrize(
    "says", [replace(LED, run="another"), replace(LED, leader="other"), replace(LED, speaker=SAID.speaker)],
    ids=["of another run", "it leads no more", "it is somebody else"],
)  # fmt: skip
def test_what_is_no_leaders_word_is_not_shown(says: SwarmStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    Leader(monkeypatch, says)
    assert plans(SAID) == [""]


@pytest.mark.parametrize("says", [None, "late"])
def test_a_leader_that_does_not_answer_is_left_alone_for_a_while(
    says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, after = Leader(monkeypatch, says), ANSWER_SECONDS + AGAIN_SECONDS + 1.0
    assert plans(SAID, (0.0, 10.0, 20.0, after)) == [""] * 4 and len(leader.asked) == 2
