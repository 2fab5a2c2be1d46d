"""A protocol is proposed before the greeting is answered, and the answer is heard all the same."""

from __future__ import annotations

from collections import deque

import pytest
import trio
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.protocol_muxer.multiselect_client import MULTISELECT_PROTOCOL_ID, MultiselectClient

from ftnode.node.watch.early_proposal import GREETING, early
from ftnode.protocol.words.errors import PeerError


class OtherSide:
    """Speaks `answers`, and the first of them only after it has heard so many lines."""

    def __init__(self, answers: list[str], patience: int = 2) -> None:
        self.heard: list[str] = []
        self._answers, self._patience = deque(answers), patience

    async def write(self, msg_str: str) -> None:
        self.heard.append(msg_str)

    async def read(self) -> str:
        assert len(self.heard) >= self._patience, "whoever greets waits for the answer before it proposes"
        return self._answers.popleft()


def selected(side: OtherSide, *protocols: str) -> str:
    async def main() -> str:
        return str(await early(MultiselectClient().select_one_of)(protocols, side))

    return trio.run(main)


def test_it_is_libp2ps_greeting() -> None:
    assert GREETING == MULTISELECT_PROTOCOL_ID


def test_the_proposal_does_not_wait_for_the_greetings_answer() -> None:
    side = OtherSide([GREETING, "/a/1"])
    assert selected(side, "/a/1") == "/a/1" and side.heard == [GREETING, "/a/1"]


def test_what_is_not_spoken_is_followed_by_the_next() -> None:
    side = OtherSide([GREETING, "na", "/b/1"])
    assert selected(side, "/a/1", "/b/1") == "/b/1" and side.heard == [GREETING, "/a/1", "/b/1"]


def test_nothing_that_is_spoken_is_an_error() -> None:
    with pytest.raises(MultiselectClientError):
        selected(OtherSide([GREETING, "na"]), "/a/1")


@pytest.mark.parametrize("answer", ["/a/1", "na", "/multistream/2.0.0", ""])
def test_another_greeting_is_not_believed(answer: str) -> None:
    with pytest.raises(PeerError, match="multistream"):
        selected(OtherSide([answer, "/a/1"]), "/a/1")
