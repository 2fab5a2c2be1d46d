"""Volunteers get missing shards from each other, and none counts as here before its hash fits."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from ftnode.models.data import load_corpus
from ftnode.models.shards import INDEX_NAME, StoredFile, check_file, open_shards, read_index
from ftnode.node.data import fetching, shard_sources, shard_store, turns
from ftnode.node.data.shard_store import ShardStore
from ftnode.node.data.shard_wire import ShardReply, ShardRequest, hear
from ftnode.node.links.side_messages import say
from ftnode.protocol.wire.frames import Refusal
from ftnode.protocol.words.errors import PeerError
from tests.node.data.corpora import shards
from tests.node.data.shard_swarm import RUN, Network, Volunteer, run


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return shards(tmp_path / "built").folder


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAUSES_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(fetching, name, (0.01,))
    monkeypatch.setattr(fetching, "LOCK_SECONDS", 0.01)


def same(store: Path, built: Path) -> bool:
    return {path.name: path.read_bytes() for path in built.iterdir()} == {
        path.name: path.read_bytes() for path in store.iterdir() if path.name != "lock"
    }


def test_one_that_has_all_lends_to_one_that_has_nothing(tmp_path: Path, built: Path) -> None:
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network).asks("nobody", "rich")

    async def main() -> None:
        await rich.shards.run()
        assert rich.shards.head() == (True, "") and rich.changes == 1
        assert poor.shards.head()[0] is False
        await poor.shards.run()

    run(network, main)
    assert poor.shards.head() == (True, "") and same(poor.store.folder, built) and not network.struck
    assert poor.changes == 2 and poor.shards.surveyed  # without the head first, with it when all is there
    assert open_shards(poor.store.folder, poor.store.sha256).sha256 == poor.store.sha256
    assert all((rich.store.folder / path.name).is_symlink() for path in built.iterdir())


def test_two_that_have_a_part_each_complete_each_other(tmp_path: Path, built: Path) -> None:
    halves = []
    files = sorted(built.glob("*.bin"))
    for number in range(2):
        half = tmp_path / f"half-{number}"
        half.mkdir()
        for path in [built / INDEX_NAME, *files[number::2]]:
            shutil.copy(path, half)
        halves.append(half)
    network = Network()
    both = [Volunteer(str(number), tmp_path, built, network, local=half) for number, half in enumerate(halves)]
    both[0].asks("1"), both[1].asks("0")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for one in both:
                nursery.start_soon(one.shards.run)

    run(network, main)
    assert all(one.store.complete and same(one.store.folder, built) for one in both)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.unlink()
    path.write_bytes(data)


def test_a_flipped_bit_of_ones_own_is_named_and_fetched_instead(tmp_path: Path, built: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(built, own)
    flip(own / "training-00001.bin")
    damaged = (own / "training-00001.bin").read_bytes()
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network, local=own).asks("rich")

    async def main() -> None:
        await rich.shards.run()
        await poor.shards.run()

    run(network, main)
    assert any("training-00001.bin does not have the hash" in said for said in poor.said)
    assert poor.store.complete and same(poor.store.folder, built)
    assert (own / "training-00001.bin").read_bytes() == damaged


def test_a_flipped_bit_in_the_home_is_found_at_the_next_start(tmp_path: Path, built: Path) -> None:
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)

    async def main() -> None:
        await rich.shards.run()
        for _ in range(2):
            poor = Volunteer("poor", tmp_path, built, network).asks("rich")
            await poor.shards.run()
            assert same(poor.store.folder, built)
            flip(poor.store.folder / "training-00000.bin")

    run(network, main)


@pytest.mark.parametrize("suffix", [".json", ".bin"])
def test_what_the_disk_does_not_give_out_now_is_not_thrown_away(
    suffix: str, tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a node that has no descriptors left: the shards are well, and may be many gigabytes."""
    whole = {path.name: path.read_bytes() for path in built.iterdir()}
    store = ShardStore(built, read_index(built)[1], 256, 1 << 30)
    opened = Path.open

    def out_of_descriptors(path: Path, *arguments: Any) -> Any:
        if path.suffix == suffix:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return opened(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", out_of_descriptors)
        survey = store.look(None)
        store.take_over(survey)
    assert not store.complete and len(survey.troubles) == (len(whole) - 1 if suffix == ".bin" else 0)
    assert {path.name: path.read_bytes() for path in built.iterdir()} == whole
    survey = store.look(None)
    store.take_over(survey)
    assert survey.troubles == () and store.complete


def test_an_index_of_ones_own_that_cannot_be_read_just_now_is_read_later(
    tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volunteer = Volunteer("rich", tmp_path, built, Network(), local=built)
    opened, tries = Path.open, list[Path]()

    def out_of_descriptors(path: Path, *arguments: Any) -> Any:
        if path == built / INDEX_NAME and len(tries) < 4:
            tries.append(path)
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(Path, "open", out_of_descriptors)
    run(Network(), volunteer.shards.run)
    assert volunteer.store.complete and len(tries) == 4
    assert volunteer.said[0] == f"cannot read shards in {built / INDEX_NAME}: Too many open files; tries again"


def test_what_is_here_stays_here_while_it_is_looked_at_again(
    tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is hashed once more before anything is fetched: of a large corpus that takes minutes."""
    network = Network()
    own = tmp_path / "own"
    shutil.copytree(built, own)
    (own / "training-00001.bin").unlink()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network, local=own).asks("rich")
    entered, gate = threading.Event(), threading.Event()

    def slowly(folder: Path, file: StoredFile) -> None:
        if poor.shards.surveyed:
            entered.set()
            assert gate.wait(10)
        check_file(folder, file)

    async def main() -> None:
        await rich.shards.run()
        monkeypatch.setattr(shard_store, "check_file", slowly)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poor.shards.run)
            await trio.to_thread.run_sync(entered.wait)
            why, spans = poor.shards.head()[1], poor.store.spans("training-00000.bin")
            gate.set()
        assert " files of the run's shards are here" in why and spans

    run(network, main)
    assert poor.store.complete


def test_another_index_in_the_home_is_replaced(tmp_path: Path, built: Path) -> None:
    other = shards(tmp_path / "other", files=41).folder
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network).asks("rich")
    shutil.copytree(other, poor.store.folder)

    async def main() -> None:
        await rich.shards.run()
        await poor.shards.run()

    run(network, main)
    index, sha256 = read_index(poor.store.folder)
    assert poor.store.complete and sha256 == poor.store.sha256
    for file in index.files:
        check_file(poor.store.folder, file)


Serve = Callable[[Path, trio.SocketStream, ShardRequest], Awaitable[None]]


async def flipped(built: Path, stream: trio.SocketStream, request: ShardRequest) -> None:
    data = bytearray((built / request.name).read_bytes())
    data[0] ^= 1
    await say(stream, ShardReply(len(data)))
    await stream.send_all(data)


async def too_long(built: Path, stream: trio.SocketStream, request: ShardRequest) -> None:
    await say(stream, ShardReply(1 << 40))
    await stream.send_all(b"x" * 1000)


async def cut_off(built: Path, stream: trio.SocketStream, request: ShardRequest) -> None:
    data = (built / request.name).read_bytes()
    await say(stream, ShardReply(len(data)))
    await stream.send_all(data[: len(data) // 2])


async def babble(built: Path, stream: trio.SocketStream, request: ShardRequest) -> None:
    await stream.send_all(b"\xff" * 1000)


async def ask_back(built: Path, stream: trio.SocketStream, request: ShardRequest) -> None:
    await say(stream, request)


async def hang(built: Path, stream: trio.SocketStream, request: ShardRequest) -> None:
    await trio.sleep_forever()


async def refuse(built: Path, stream: trio.SocketStream, request: ShardRequest) -> None:
    await say(stream, Refusal("no\nthanks", retry=False))


@pytest.mark.parametrize(
    ("serve", "blamed"),
    [
        (flipped, True),
        (too_long, True),
        (babble, True),
        (ask_back, True),
        (cut_off, False),
        (hang, False),
        (refuse, False),
    ],
)
@pytest.mark.parametrize("knows_index", [False, True])
def test_a_bad_peer_is_passed_over_and_nothing_of_it_is_kept(
    serve: Serve, blamed: bool, knows_index: bool, tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if serve is hang:
        monkeypatch.setattr(shard_sources, "ANSWER_SECONDS", 0.05)
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network).asks("bad", "rich")

    async def answer(stream: trio.SocketStream) -> None:
        try:
            request = await hear(stream)
            assert isinstance(request, ShardRequest)
            if knows_index and request.name == INDEX_NAME:
                data = (built / INDEX_NAME).read_bytes()
                await say(stream, ShardReply(len(data)))
                await stream.send_all(data)
            else:
                await serve(built, stream, request)
        except (OSError, trio.BrokenResourceError):
            pass  # it hung up on us

    network.answers["bad"] = answer

    async def main() -> None:
        await rich.shards.run()
        await poor.shards.run()

    run(network, main)
    assert poor.store.complete and same(poor.store.folder, built)
    assert ({name for name, _ in network.struck} == {"bad"}) is blamed
    assert any("nothing from peer bad" in said for said in poor.said)


def test_who_has_another_index_cannot_hold_the_head(tmp_path: Path, built: Path) -> None:
    other = shards(tmp_path / "other", files=41).folder
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network, local=other).asks("rich")

    async def main() -> None:
        await rich.shards.run()
        await poor.shards.run()

    run(network, main)
    allowed, why = poor.shards.head()
    assert not allowed and "the run's is" in why and str(other) in why
    assert poor.shards.surveyed and poor.changes == 1 and poor.said == [why]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocabulary": 100}, "the tokenizer bytes has 256 tokens, the run's model 100"),
        ({"bytes_max": 1000}, "more than 1.0 kB; raise --data-limit"),
    ],
)
def test_what_cannot_be_used_is_not_fetched(options: dict[str, int], says: str, tmp_path: Path, built: Path) -> None:
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network, **options).asks("rich")  # type: ignore[arg-type]

    async def main() -> None:
        await rich.shards.run()
        await poor.shards.run()

    run(network, main)
    assert says in poor.shards.head()[1] and not list(poor.store.folder.glob("*.bin*"))


def test_a_disk_without_room_is_said_once_and_fetched_to_when_it_has_some(
    tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network).asks("rich")
    usage, looked = shutil.disk_usage(tmp_path), []

    def full(path: Path) -> object:
        looked.append(path)
        return usage._replace(free=1 << 30)

    async def main() -> None:
        await rich.shards.run()
        monkeypatch.setattr(shutil, "disk_usage", full)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poor.shards.run)
            while len(looked) < 4:
                await trio.lowlevel.checkpoint()
            allowed, why = poor.shards.head()
            assert not allowed and " kB of shards are missing" in why
            assert "has 1.1 GB free, of which 1.1 GB stay free; make room" in why
            assert poor.said.count(why) == 1 and poor.changes == 2, "three times in vain, said once"
            monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))

    run(network, main)
    assert poor.shards.head() == (True, "") and same(poor.store.folder, built)


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, built: Path) -> None:
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network).asks("rich")
    in_the_way = poor.store.part(StoredFile("training-00000.bin", 0, ""), "peer rich")

    async def main() -> None:
        await rich.shards.run()
        in_the_way.mkdir(parents=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poor.shards.run)
            while not any("cannot keep shards in" in said for said in poor.said):
                await trio.lowlevel.checkpoint()
            in_the_way.rmdir()

    run(network, main)
    assert poor.store.complete and same(poor.store.folder, built)
    assert sum(f"{in_the_way}: Is a directory; tries again" in said for said in poor.said) == 1


def test_a_disk_that_becomes_full_is_no_fault_of_the_peer(
    tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network).asks("rich")

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        await rich.shards.run()
        with monkeypatch.context() as patch:
            patch.setattr(fetching, "_append", full)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poor.shards.run)
                while not any("No space left" in said for said in poor.said):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert poor.shards.head()[1].startswith("cannot keep shards in ")
        await poor.shards.run()

    run(network, main)
    assert poor.store.complete and same(poor.store.folder, built)
    assert not any("nothing from peer" in said for said in poor.said)


def test_two_nodes_of_a_home_do_not_fetch_the_same(tmp_path: Path, built: Path) -> None:
    network, asked = Network(), []
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    twins = [Volunteer("twin", tmp_path, built, network).asks("counted") for _ in range(2)]

    async def counted(stream: trio.SocketStream) -> None:
        asked.append(1)
        await rich.lender.serve("borrower", stream)

    network.answers["counted"] = counted

    async def main() -> None:
        await rich.shards.run()
        async with trio.open_nursery() as nursery:
            for twin in twins:
                nursery.start_soon(twin.shards.run)

    run(network, main)
    assert all(twin.store.complete for twin in twins)
    assert len(asked) == len(list(built.iterdir()))


def answer_to(network: Network, lender: Volunteer, request: object) -> object:
    found: list[object] = []

    async def main() -> None:
        await lender.shards.run()
        stream = await network.open("rich", "/ftnode/data/2")
        async with stream:
            await say(stream, request)  # type: ignore[arg-type]
            try:
                found.append(await hear(stream))
            except EOFError:
                found.append("hung up")

    run(network, main)
    return found[0]


@pytest.mark.parametrize(
    ("request_for", "answer"),
    [
        (ShardRequest("other", INDEX_NAME), Refusal("another run", False)),
        (ShardRequest(RUN, "training-77777.bin"), Refusal("it is not here", False)),
        (ShardRequest(RUN, "../built/shards/index.json"), Refusal("it is not here", False)),
        (ShardRequest(RUN, "lock"), Refusal("it is not here", False)),
        (ShardReply(5), "hung up"),
    ],
)
def test_a_lender_gives_files_of_the_corpus_alone(
    request_for: object, answer: object, tmp_path: Path, built: Path
) -> None:
    network = Network()
    assert answer_to(network, Volunteer("rich", tmp_path, built, network, local=built), request_for) == answer
    assert bool(network.struck) is (answer == "hung up")


def test_a_lender_gives_nothing_to_who_may_not_join(tmp_path: Path, built: Path) -> None:
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)

    async def main() -> None:
        await rich.shards.run()
        for peer, kind in (("stranger", Refusal), ("member", ShardReply)):
            ours, theirs = map(trio.SocketStream, trio.socket.socketpair())
            assert network.nursery is not None
            network.nursery.start_soon(rich.lender.serve, peer, theirs)
            await say(ours, ShardRequest(RUN, INDEX_NAME))
            assert isinstance(await hear(ours), kind)

    run(network, main)


def test_a_lender_is_busy_with_a_few_at_a_time(tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    monkeypatch.setattr(turns, "PLACES_MAX", 3)
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.05)
    (tmp_path / "large").write_bytes(b"x" * (4 << 20))  # more than a socket holds

    async def main() -> None:
        await rich.shards.run()
        rich.store.have["large"] = tmp_path / "large"
        streams, answers = [], []
        for peer in ("a", "a", "a", "b", "c"):
            ours, theirs = trio.socket.socketpair()
            network.nursery.start_soon(rich.lender.serve, peer, trio.SocketStream(theirs))  # type: ignore[union-attr]
            streams.append(trio.SocketStream(ours))
            await say(streams[-1], ShardRequest(RUN, "large"))
            answers.append(await hear(streams[-1]))
        busy = Refusal("busy with other shards", retry=True)
        assert [answer == busy for answer in answers] == [False, False, True, False, True]
        for stream in streams:
            await stream.aclose()
        while rich.lender.turns.lent:
            await trio.lowlevel.checkpoint()

    run(network, main)


def test_frames_are_bounded() -> None:
    async def main() -> None:
        for data in (b"\0\0\x10\x01", b"\0\0\0\0", b"\0\0\0\x01\xc1"):
            ours, theirs = trio.socket.socketpair()
            await trio.SocketStream(ours).send_all(data + b"x" * 5000)
            with pytest.raises(PeerError):
                await hear(trio.SocketStream(theirs))

    trio.run(main)


def test_text_is_no_corpus_for_shards_nor_shards_for_text(built: Path) -> None:
    assert load_corpus(str(built.parent / "text")).sha256 != open_shards(built).sha256


def test_a_file_that_is_looked_for_anew_at_that_moment_is_not_here_and_nobodys_fault(
    tmp_path: Path, built: Path
) -> None:
    """The look is in a thread, and the lender has just seen the file."""

    class Cleared(dict[str, Path]):
        def __contains__(self, name: object) -> bool:
            return True

    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network).asks("rich")

    async def main() -> None:
        await rich.shards.run()
        rich.store.have = Cleared()
        with trio.move_on_after(0.2):
            await poor.shards.run()

    run(network, main)
    assert not network.struck and poor.store.index is None
