"""What a watcher asks of the author's words, and how often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import trio
from trio.testing import MockClock

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.manifests.announcement import AGAIN_SECONDS, AuthorsWords
from ftnode.node.watch.light_client import Unanswered
from ftnode.node.watch.status import Speaker, SwarmStatus

ONE, OTHER = PeerAddress("one", ()), PeerAddress("other", ())
STATUS = SwarmStatus(Speaker("one", "1", "cpu", "volunteer"), run="run", revision=3)


class Peers:
    """`says`: what each has, None while it does not answer."""

    def __init__(self) -> None:
        self.says: dict[str, str | None] = {}
        self.asked: list[str] = []

    async def ask(self, host: Any, peer: PeerAddress, run: str) -> str:
        self.asked.append(peer.peer_id)
        said = self.says[peer.peer_id]
        if said is None:
            raise Unanswered("no answer")
        return said


def test_a_manifest_is_asked_for_once_for_each_revision() -> None:
    peers, host = Peers(), Any
    words = AuthorsWords(peers.ask)

    async def scenario() -> None:
        peers.says = {"one": "hello"}
        for _ in range(3):
            assert (await words.added(host, ONE, STATUS)).announcement == "hello"
        peers.says = {"one": "again"}
        assert (await words.added(host, ONE, replace(STATUS, revision=4))).announcement == "again"
        assert (await words.added(host, ONE, replace(STATUS, run="another", revision=0))).announcement == ""

    trio.run(scenario)
    assert peers.asked == ["one", "one"]


def test_who_gives_no_manifest_holds_up_one_look_and_not_every_one() -> None:
    peers, host = Peers(), Any
    words, clock = AuthorsWords(peers.ask), MockClock()

    async def scenario() -> None:
        peers.says = {"one": None, "other": "hello"}
        for _ in range(3):
            assert (await words.added(host, ONE, STATUS)).announcement == ""
        assert peers.asked == ["one"]
        await words.added(host, ONE, replace(STATUS, revision=4))
        assert peers.asked == ["one", "one"], "a newer one may be had"
        clock.jump(AGAIN_SECONDS)
        await words.added(host, ONE, replace(STATUS, revision=4))
        assert peers.asked == ["one", "one", "one"]
        assert (await words.added(host, OTHER, replace(STATUS, revision=4))).announcement == "hello"

    trio.run(scenario, clock=clock)
    assert peers.asked == ["one", "one", "one", "other"]
