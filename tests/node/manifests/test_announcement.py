"""Watchers ask for a run's manifest when its author may have said something new, and not again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from ftnode.node.home.identity import Identity
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.manifests import announcement
from ftnode.node.manifests.announcement import AGAIN_SECONDS, AuthorsWords
from ftnode.node.manifests.authorship import announce, sign
from ftnode.node.manifests.exchange import FORMAT
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.watch.light_client import Unanswered
from ftnode.node.watch.status import Speaker, SwarmStatus
from ftnode.protocol.manifest.parse import parse, render

PEER = PeerAddress("p", ())


class Members:
    """Answer with a manifest; None: not at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self.text: str | None = text
        self.asked = 0
        monkeypatch.setattr(announcement, "open_stream", self.open_stream)
        monkeypatch.setattr(announcement, "send", self.send)
        monkeypatch.setattr(announcement, "receive", self.receive)

    @asynccontextmanager
    async def open_stream(self, *_: Any) -> AsyncIterator[None]:
        self.asked += 1
        if self.text is None:
            raise Unanswered("not here")
        yield

    async def send(self, *_: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self, *_: Any) -> bytes:
        assert self.text is not None
        packed: bytes = msgpack.packb({"format": FORMAT, "manifest": self.text.encode()})
        return packed


def looks(words: AuthorsWords, status: SwarmStatus, times: list[float]) -> list[str]:
    """What is known of the announcement at these seconds."""

    async def main() -> list[str]:
        found = []
        for at in times:
            await trio.sleep_until(at)
            found.append((await words.added(None, PEER, status)).announcement)  # type: ignore[arg-type]
        return found

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def said(key: Identity) -> str:
    return announce(sign(render(PRESETS["tiny"]), key), "hello", key)


def status_of(text: str) -> SwarmStatus:
    manifest = parse(text)
    return SwarmStatus(Speaker("p", "", "", ""), run=manifest.run_id, revision=manifest.membership.revision)


def test_a_revision_is_asked_for_once(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch, said)
    assert looks(AuthorsWords(), status_of(said), [1.0, 2.0, 3.0]) == ["hello"] * 3 and members.asked == 1


@pytest.mark.parametrize("also_first", [False, True])
def test_the_first_manifest_is_asked_for_where_it_is_wanted(
    also_first: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, words = Members(monkeypatch, said), AuthorsWords(also_first)
    looks(words, replace(status_of(said), revision=0), [1.0, 2.0])
    assert (members.asked, words.manifest is not None) == (int(also_first), also_first)


def test_who_gives_none_is_asked_again_later(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members, words = Members(monkeypatch, said), AuthorsWords()
    members.text = None
    looks(words, status_of(said), [float(second) for second in range(1, int(AGAIN_SECONDS))])
    assert members.asked == 1 and words.manifest is None
    members.text = said
    assert looks(words, status_of(said), [AGAIN_SECONDS + 2.0]) == ["hello"]


def test_of_another_run_nothing_is_known(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members, words = Members(monkeypatch, said), AuthorsWords()
    looks(words, status_of(said), [1.0])
    members.text = None
    assert looks(words, replace(status_of(said), run="0" * 32), [2.0]) == [""] and words.manifest is None
