"""Who is lent a shard when many ask: slow readers and crowds of identities keep nobody from their share."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from ftnode.models.shards import BLOCK_BYTES
from ftnode.node.data import fetching, turns
from ftnode.node.data.shard_sources import PeerShards
from ftnode.node.data.shard_wire import ShardReply, ShardRequest, hear
from ftnode.node.data.turns import Busy, Turns
from ftnode.node.links.side_messages import say
from ftnode.protocol.wire.frames import Refusal
from tests.node.data import shard_swarm
from tests.node.data.corpora import shards
from tests.node.data.shard_swarm import RUN, Network, Volunteer

LARGE = 1 << 20
SLOWLY = 50_000
PAUSE = 50.0
"""Between two reads of a slow one: each block of ours goes out within its minute."""


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return shards(tmp_path / "built").folder


def run(main: Callable[[trio.Nursery], Awaitable[None]], seconds: float = 36_000.0, threshold: float = 0.005) -> None:
    """On a clock that begins at zero, and waits for nobody. `threshold`: 0 where there are no threads and sockets."""

    async def bounded() -> None:
        with trio.fail_after(seconds):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(bounded, clock=MockClock(autojump_threshold=threshold))


async def passes(seconds: float) -> None:
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


class ReadAtOnce:
    """A file that is read without a thread, which the clock would not wait for."""

    def __init__(self, path: str, mode: str) -> None:
        self._file = BytesIO(Path(path).read_bytes())

    async def seek(self, place: int) -> int:
        return self._file.seek(place)

    async def read(self, size: int) -> bytes:
        return self._file.read(size)

    async def __aenter__(self) -> ReadAtOnce:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._file.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_at_once(path: str, mode: str) -> ReadAtOnce:
        return ReadAtOnce(path, mode)

    monkeypatch.setattr(trio, "open_file", open_at_once)


def pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """A borrower's end, and a lender's that holds little that is not read."""
    ours, theirs = trio.socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def borrow_slowly(nursery: trio.Nursery, rich: Volunteer, peer: str) -> None:
    """One stream after the other, each read as slowly as it is lent."""
    while True:
        ours, theirs = pair()
        nursery.start_soon(rich.lender.serve, peer, theirs)
        await say(ours, ShardRequest(RUN, "large"))
        if not isinstance(await hear(ours), Refusal):
            while await ours.receive_some(BLOCK_BYTES // 8):
                await passes(PAUSE / 8)
        await ours.aclose()


def with_a_large_file(tmp_path: Path, built: Path) -> Volunteer:
    rich = Volunteer("rich", tmp_path, built, Network(), local=built)
    (tmp_path / "large").write_bytes(bytes(range(256)) * (LARGE // 256))
    trio.run(rich.shards.run)
    rich.store.have["large"] = tmp_path / "large"
    return rich


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("bug", [False, True])
def test_two_slow_strangers_lose_places_to_whoever_waits(
    bug: bool, tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold all four, and each block that they are lent goes out in time. The planted bug: no turn is ever over."""
    if bug:
        monkeypatch.setattr(Turns, "who_yields", lambda self, now: None)
    rich = with_a_large_file(tmp_path, built)
    found: list[float] = []

    async def main(nursery: trio.Nursery) -> None:
        for peer in ("a-1", "a-2", "a-1", "a-2"):
            nursery.start_soon(borrow_slowly, nursery, rich, peer)
        await passes(5)
        assert len(rich.lender.turns.lent) == 4
        while not found and trio.current_time() < turns.TURN_SECONDS + 20:
            ours, theirs = pair()
            nursery.start_soon(rich.lender.serve, "b-1", theirs)
            await say(ours, ShardRequest(RUN, "training-00000.bin"))
            if isinstance(await hear(ours), ShardReply):
                found.append(trio.current_time())
            await passes(0.5)

    run(main)
    assert bool(found) is not bug
    if found:
        assert found[0] <= turns.TURN_SECONDS + turns.LOOK_SECONDS + 1


@pytest.mark.usefixtures("at_once")
def test_a_slow_line_gets_a_file_in_turns(tmp_path: Path, built: Path) -> None:
    """What came in one turn is not asked for again, and the file is whole at the end."""
    rich = with_a_large_file(tmp_path, built)
    whole = (tmp_path / "large").read_bytes()
    got, asked = bytearray(), []

    async def open_slowly(nursery: trio.Nursery, peer: str) -> None:
        ours, theirs = pair()
        nursery.start_soon(rich.lender.serve, peer, theirs)
        asked.append(len(got))
        await say(ours, ShardRequest(RUN, "large", len(got)))
        answer = await hear(ours)
        if isinstance(answer, ShardReply):
            assert answer.size == len(whole)
            left = SLOWLY
            while piece := await ours.receive_some(left):
                got.extend(piece)
                left -= len(piece)
                if not left:
                    left = SLOWLY
                    await passes(2.0)  # 25 kB/s
        await ours.aclose()

    async def main(nursery: trio.Nursery) -> None:
        for number in range(8):
            nursery.start_soon(borrow_slowly, nursery, rich, f"{number}a-1")
        while len(got) < len(whole):
            await open_slowly(nursery, "b-1")
            await passes(2.0)

    run(main)
    assert bytes(got) == whole
    assert len({start for start in asked if start}) >= 3, "in several turns"
    assert asked == sorted(asked)


@pytest.mark.parametrize("bug", [False, True])
def test_many_identities_at_one_network_share_what_one_has(bug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-five ask all the time, and one elsewhere. The planted bug: whoever asked first comes first."""
    if bug:
        monkeypatch.setattr(Turns, "_first", lambda self: self.waiting[0])
        monkeypatch.setattr(turns, "WAITING_MAX", 200)
    lender, had = Turns(), Counter[str]()

    async def ask(peer: str, network: str, pause: float) -> None:
        while True:
            began = None
            try:
                async with lender.place(peer, network):
                    began = trio.current_time()
                    await passes(60.0)
            except Busy:
                pass
            if began is not None:
                had[network] += int(trio.current_time() - began)
            await passes(pause)

    async def main(nursery: trio.Nursery) -> None:
        for number in range(100):
            nursery.start_soon(ask, f"liar-{number}", "liars", 2.0)
        nursery.start_soon(ask, "honest", "elsewhere", 5.0)
        await passes(250.0)

    run(main, threshold=0.0)
    share = had["elsewhere"] / had.total()
    assert (share > 0.15) is not bug, share


def test_a_row_that_is_full_takes_another_network_in() -> None:
    async def main(nursery: trio.Nursery) -> None:
        lender, refused = Turns(), list[str]()

        async def ask(peer: str, network: str) -> None:
            try:
                async with lender.place(peer, network):
                    await trio.sleep_forever()
            except Busy:
                refused.append(peer)

        for number in range(turns.PLACES_MAX + turns.WAITING_MAX):
            nursery.start_soon(ask, f"a-{number}", "a")
            await passes(0.001)
        nursery.start_soon(ask, "a-late", "a")
        await passes(0.001)
        assert refused == ["a-late"]
        nursery.start_soon(ask, "b", "b")
        await passes(0.001)
        assert refused == ["a-late", f"a-{turns.PLACES_MAX + turns.WAITING_MAX - 1}"]
        assert [other.peer for other in lender.waiting][-1] == "b" and len(lender.waiting) == turns.WAITING_MAX

    run(main)


def test_nobody_goes_who_has_no_more_than_its_share() -> None:
    """Four networks with a place each, and one of them asks for more."""

    async def main(nursery: trio.Nursery) -> None:
        lender = Turns()

        async def hold(peer: str, network: str) -> None:
            async with lender.place(peer, network):
                await trio.sleep_forever()

        for network in "abcd":
            nursery.start_soon(hold, network, network)
            await passes(0.001)
        await passes(2 * turns.TURN_SECONDS)
        with pytest.raises(Busy):
            await hold("a", "a")
        assert [other.peer for other in lender.lent] == [*"abcd"]

    run(main)


def test_a_file_goes_on_where_its_source_stopped_and_a_liar_spoils_its_own_part_alone(
    tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One gives the first half of everything, wrongly, and ends; the other gives each file in two goes."""
    network, starts = Network(), list[tuple[str, int]]()
    poor = Volunteer("poor", tmp_path, built, network).asks("liar", "honest")

    def giver(name: str, spoil: bool) -> Callable[[trio.SocketStream], Awaitable[None]]:
        async def answer(stream: trio.SocketStream) -> None:
            request = await hear(stream)
            assert isinstance(request, ShardRequest)
            data = (built / request.name).read_bytes()
            await say(stream, ShardReply(len(data)))
            if request.name == "index.json":
                await stream.send_all(data)
                return
            starts.append((f"{name} {request.name}", request.start))
            half = data[: len(data) // 2] if request.start == 0 or spoil else data
            await stream.send_all(bytes(len(half)) if spoil else half[request.start :])

        return answer

    network.answers = {"liar": giver("liar", True), "honest": giver("honest", False)}
    monkeypatch.setattr(fetching, "PAUSES_SECONDS", (0.01,))
    shard_swarm.run(network, poor.shards.run)
    assert poor.store.complete
    for path in built.glob("*.bin"):
        asked = [start for name, start in starts if name == f"honest {path.name}"]
        assert asked == [0, path.stat().st_size // 2], "each half of it came once"
    assert {name for name, _ in network.struck} <= {"liar"}
    assert not list(poor.store.folder.glob("*.part"))


def test_only_some_files_grow_at_a_time(tmp_path: Path, built: Path) -> None:
    poor = Volunteer("poor", tmp_path, built, Network())
    poor.store.take_over(poor.store.look(built))
    assert poor.store.index is not None
    file = poor.store.index.files[0]
    for number in range(10):
        part = poor.store.part(file, PeerShards(RUN, str(number), Network()).label)
        poor.store.begin(part)
        part.write_bytes(b"x")
    assert len(poor.store.parts(file)) == 4
