"""Who a peer is, how far away it is, and which way leads there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgpack
import pytest
import trio
import trio.testing

from ftnode.node.home.identity import take_identity
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.watch import peer_latency as module
from ftnode.node.watch.peer_latency import (
    WHO_PROTOCOL,
    Acquaintance,
    Acquaintances,
    paths_of,
    read_answer,
    who_handler,
)
from ftnode.node.watch.status import Speaker
from ftnode.node.watch.time_use import TimeUse, told
from ftnode.protocol.words.errors import PeerError

SPEAKER = Speaker("me", "0.1.0", "cpu", "bootstrap")
USE = TimeUse(0.1, 0.9, 0.05, 0.8, 2.5e6)


def test_a_direct_connection_counts() -> None:
    circuit, direct = "/ip4/192.0.2.7/tcp/1/p2p/Q/p2p-circuit", "/ip4/192.0.2.7/tcp/1"
    assert paths_of([("a", circuit)]) == {"a": ("relayed", circuit)}
    assert paths_of([("a", circuit), ("a", direct), ("a", circuit)]) == {"a": ("direct", direct)}
    assert paths_of([("a", "")]) == {"a": ("direct", "")}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x91" * 9000, msgpack.packb([]), msgpack.packb({"version": "1", "role": "x"}),
        msgpack.packb({"version": 1, "role": "x", "device": "x"}),
        msgpack.packb({"version": "1", "role": "x", "device": "x", "computed": 0.5}),
        msgpack.packb({"version": "1", "role": "x", "device": "x"} | told(USE) | {"sent": 1.1}),
        msgpack.packb({"version": "1", "role": "x", "device": "x"} | told(USE) | {"waited": float("nan")}),
        msgpack.packb({"version": "1", "role": "x", "device": "x"} | told(USE) | {"up": -1}),
    ],
)  # fmt: skip
def test_nonsense_is_a_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        read_answer(data)


def test_words_are_short_and_steer_no_terminal() -> None:
    words = read_answer(msgpack.packb({"version": "\x1b[2J" + "x" * 500, "role": "r", "device": "d", "clock": 1.0}))
    assert "\x1b" not in words.version and len(words.version) == module.WORD_MAX
    assert words.use is None


def with_two(folder: Path, test: Callable[[P2pd, P2pd], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            ours, theirs = [await P2pd.start(nursery, take_identity(folder, name).path) for name in ("ours", "theirs")]
            await ours.connect(theirs.peer_id, await theirs.addresses(), 5.0)
            try:
                with trio.fail_after(60):
                    await test(ours, theirs)
            finally:
                ours.close()
                theirs.close()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_round_finds_out_who_is_connected(tmp_path: Path) -> None:
    async def test(ours: P2pd, theirs: P2pd) -> None:
        await theirs.serve(WHO_PROTOCOL, who_handler(lambda: SPEAKER, use=lambda: USE))
        round_ = Acquaintances(ours, lambda: ["stranger", theirs.peer_id])
        await round_.look()
        assert round_.known["stranger"] == Acquaintance("none")
        met = round_.known[theirs.peer_id]
        assert (met.path, met.version, met.role, met.use) == ("direct", "0.1.0", "bootstrap", USE)
        assert met.latency is not None and 0 < met.latency < 5 and met.address.startswith("/ip4/127.0.0.1/")

    with_two(tmp_path, test)


def test_who_does_not_say_keeps_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)

    async def garbage(_peer: str, stream: trio.SocketStream) -> None:
        await write_frame(stream, b"\xc1")

    async def never(_peer: str, stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async def test(ours: P2pd, theirs: P2pd) -> None:
        round_ = Acquaintances(ours, lambda: [theirs.peer_id])
        await round_.look()
        assert round_.known[theirs.peer_id].latency is None, "it does not speak the protocol"
        handlers = [garbage, never]

        async def handle(peer: str, stream: trio.SocketStream) -> None:
            await handlers[0](peer, stream)

        await theirs.serve(WHO_PROTOCOL, handle)
        for _ in range(2):
            await round_.look()
            handlers.reverse()
            assert (round_.known[theirs.peer_id].path, round_.known[theirs.peer_id].latency) == ("direct", None)

    with_two(tmp_path, test)


class Connections:
    """What is asked of p2pd: who is connected, or an error, and a stream that nobody opens."""

    def __init__(self) -> None:
        self.now: list[tuple[str, str]] = []
        self.answers = True
        self.asked: list[str] = []

    async def connections(self) -> list[tuple[str, str]]:
        if not self.answers:
            raise P2pdError("no answer within 5 s")
        return self.now

    async def open(self, peer: str, protocol: str, seconds: float) -> trio.SocketStream:
        self.asked.append(peer)
        raise P2pdError("nobody")


def test_who_connects_or_goes_between_two_rounds_is_seen_at_the_next_glance() -> None:
    """On a slow machine a round falls between the word of a peer and the link to it, or p2pd answers late."""
    p2pd, clock = Connections(), trio.testing.MockClock()
    round_ = Acquaintances(p2pd, lambda: ["one", "other"])  # type: ignore[arg-type]

    async def paths_after(seconds: float) -> list[str]:
        clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()
        return [round_.known[peer].path for peer in ("one", "other")]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(round_.run)
            assert await paths_after(0.0) == ["none", "none"]
            p2pd.now = [("one", "/ip4/192.0.2.7/tcp/1"), ("other", "/ip4/192.0.2.8/tcp/1")]
            assert await paths_after(module.GLANCE_SECONDS) == ["direct", "direct"]
            assert sorted(p2pd.asked) == ["one", "other"]
            p2pd.now.pop()
            assert await paths_after(module.GLANCE_SECONDS) == ["direct", "none"]
            assert len(p2pd.asked) == 2, "only newcomers are asked between two rounds"
            p2pd.answers = False
            assert await paths_after(module.ROUND_SECONDS) == ["direct", "none"]
            p2pd.answers = True
            await paths_after(module.GLANCE_SECONDS)
            assert len(p2pd.asked) == 3, "the round that p2pd did not answer is made up for"
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_questions_with_words_get_no_answer() -> None:
    async def main() -> None:
        handle = who_handler(lambda: SPEAKER, lambda: 12.0)
        ours, theirs = trio.testing.memory_stream_pair()
        await write_frame(ours, b"")
        await handle("peer", theirs)  # type: ignore[arg-type]
        answer = msgpack.unpackb(await read_frame(ours.receive_some, module.ANSWER_BYTES_MAX))
        assert answer == {"version": "0.1.0", "role": "bootstrap", "device": "cpu", "clock": 12.0}
        for sent in (b"\x00\x00\x00\x01x", b"\xff\xff\xff\xff", b"\x00"):
            ours, theirs = trio.testing.memory_stream_pair()
            await ours.send_all(sent)
            with trio.fail_after(module.ANSWER_SECONDS + 1):
                await handle("peer", theirs)  # type: ignore[arg-type]
            with pytest.raises(EOFError):
                await read_frame(ours.receive_some, module.ANSWER_BYTES_MAX)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
