"""Volunteers get the layers that their stages begin with from whoever has the model, and only those."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import trio

from ftnode.models.config import ModelConfig
from ftnode.models.data import Unread
from ftnode.models.first_weights import WEIGHTS_NAME, layer_names, open_checkpoint
from ftnode.models.huggingface import read_config
from ftnode.models.initial import stage_layers
from ftnode.models.shards import StoredFile
from ftnode.node.data import fetching, first_layers, layer_store, shard_sources
from ftnode.node.data.file_store import PART_SUFFIX
from ftnode.node.data.first_layers import FirstLayers
from ftnode.node.data.layer_store import LayerStore
from ftnode.node.data.shard_lending import ShardLender
from ftnode.node.data.shard_sources import PeerShards
from ftnode.node.data.shard_wire import ShardReply, ShardRequest, hear
from ftnode.node.links.side_messages import say
from ftnode.node.ports import LayersMissing
from ftnode.protocol.words.errors import UserError
from tests.models.families import saved
from tests.models.test_first_weights import STAGES, begun
from tests.node.data.shard_swarm import RUN, Network, run, seen_at

NAME = "qwen-2"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAUSES_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(fetching, name, (0.01,))
    monkeypatch.setattr(first_layers, "PAUSES_SECONDS", (0.01,))
    monkeypatch.setattr(fetching, "LOCK_SECONDS", 0.01)
    monkeypatch.setattr(first_layers, "ASK_SECONDS", 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved(NAME, tmp_path / "model", torch.bfloat16, max_shard_size="20KB")
    return tmp_path / "model"


class Volunteer:
    """The layers of one node."""

    def __init__(
        self, name: str, folder: Path, network: Network, local: Path | None = None, bytes_max: int = 1 << 30
    ) -> None:
        self.model: ModelConfig = read_config(folder).model
        sha256 = open_checkpoint(folder, self.model).index().sha256
        self.store = LayerStore(folder.parent / name, sha256, self.model, bytes_max)
        network.lenders[name] = ShardLender(RUN, [self.store], network.strike, lambda peer: True, seen_at)
        self.said: list[str] = []
        self.peers: list[str] = []
        self.held: set[int] = set()
        self.failures: list[UserError] = []
        self.first = FirstLayers(
            self.store, self.model, STAGES, local, lambda: [PeerShards(RUN, peer, network) for peer in self.peers],
            Random(1), self.said.append, lambda: None, lambda: self.held, self.failures.append,
        )  # fmt: skip

    def asks(self, *names: str) -> Volunteer:
        self.peers = list(names)
        return self

    async def weights(self, stage: int) -> torch.Tensor:
        """Those with which its stage begins."""
        layers = stage_layers(self.model, STAGES, stage, await self.first.layers(stage))
        return begun(self.model, stage, layers).weights.clone()

    def fetched(self) -> list[str]:
        return sorted(path.name for path in self.store.folder.glob("*.bin"))


def among(network: Network, volunteers: list[Volunteer], main: Callable[[], Awaitable[None]]) -> None:
    async def with_them() -> None:
        async with trio.open_nursery() as nursery:
            for volunteer in volunteers:
                nursery.start_soon(volunteer.first.run)
            await main()
            nursery.cancel_scope.cancel()

    run(network, with_them)


def test_only_what_a_stage_needs_is_fetched_and_lent_on(folder: Path) -> None:
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network).asks("nobody", "rich")
    third = Volunteer("third", folder, network).asks("poor")

    async def main() -> None:
        given = await rich.weights(1)
        assert torch.equal(await poor.weights(1), given) and torch.equal(await third.weights(1), given)

    among(network, [rich, poor, third], main)
    names = layer_names(rich.model, STAGES, 1)
    assert poor.fetched() == third.fetched() == names and rich.fetched() == [] and not network.struck


async def flipped(data: bytes, stream: trio.SocketStream) -> None:
    await say(stream, ShardReply(len(data)))
    await stream.send_all(data[:-1] + bytes([data[-1] ^ 1]))


async def too_long(data: bytes, stream: trio.SocketStream) -> None:
    await say(stream, ShardReply(1 << 40))
    await stream.send_all(data)


async def cut_off(data: bytes, stream: trio.SocketStream) -> None:
    await say(stream, ShardReply(len(data)))
    await stream.send_all(data[: len(data) // 2])


async def hang(data: bytes, stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize(("serve", "blamed"), [(flipped, True), (too_long, True), (cut_off, False), (hang, False)])
def test_who_gives_something_else_is_passed_over(
    serve: Callable[[bytes, trio.SocketStream], Awaitable[None]], blamed: bool, folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if serve is hang:
        monkeypatch.setattr(shard_sources, "ANSWER_SECONDS", 0.05)
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network).asks("bad", "rich")
    index = open_checkpoint(folder, rich.model).index().encode()

    async def answer(stream: trio.SocketStream) -> None:
        try:
            request = await hear(stream)
            assert isinstance(request, ShardRequest)
            if request.name == WEIGHTS_NAME:
                await say(stream, ShardReply(len(index)))
                await stream.send_all(index)
                return
            spans = rich.store.spans(request.name)
            data = b"".join(Path(one.path).read_bytes()[one.start : one.start + one.size] for one in spans)
            await serve(data, stream)
        except (OSError, trio.BrokenResourceError):
            pass  # it hung up on us

    network.answers["bad"] = answer

    async def main() -> None:
        given = await rich.weights(0)
        assert torch.equal(await poor.weights(0), given)

    among(network, [rich, poor], main)
    assert ({name for name, _ in network.struck} == {"bad"}) is blamed


def test_a_folder_that_changes_in_mid_run_is_noticed_and_the_layer_fetched(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    mine = Volunteer("mine", folder, network, local=own).asks("rich")

    async def main() -> None:
        given = await rich.weights(2)
        rows = await mine.first.layers(2)
        for path in own.glob("*.safetensors"):
            data = bytearray(path.read_bytes())
            data[-200:] = bytes(200)
            path.write_bytes(data)
        with pytest.raises(Exception, match="does not have its hash"):
            begun(mine.model, 2, stage_layers(mine.model, STAGES, 2, rows))
        await mine.first.layers(1)
        mine.first.spoiled(2)
        assert set(mine.store.have) == {WEIGHTS_NAME}, "nothing of the folder is believed"
        assert torch.equal(await mine.weights(2), given)
        assert torch.equal(await mine.weights(1), await rich.weights(1))

    among(network, [rich, mine], main)
    assert mine.fetched() == [*layer_names(mine.model, STAGES, 1), *layer_names(mine.model, STAGES, 2)]


def test_a_folder_of_another_model_ends_the_node(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    saved(NAME, other, torch.float32)
    network = Network()
    wrong = Volunteer("wrong", folder, network, local=other)

    async def main() -> None:
        with pytest.raises(LayersMissing, match="and the run began with"):
            await wrong.first.layers(1)

    among(network, [wrong], main)
    (failure,) = wrong.failures
    assert failure.exit_code == 65 and f"--from: the weights in {other} are" in str(failure)


def test_what_is_larger_than_allowed_is_not_fetched(folder: Path) -> None:
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network, bytes_max=1000).asks("rich")

    async def main() -> None:
        with pytest.raises(LayersMissing, match="raise --data-limit"):
            await poor.first.layers(1)

    among(network, [rich, poor], main)
    assert poor.fetched() == []


def test_a_layer_that_nobody_gives_is_not_waited_for_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_layers, "STILL_SECONDS", 0.2)
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network).asks("rich")

    async def main() -> None:
        await poor.first.layers(1)
        poor.asks()
        with pytest.raises(LayersMissing, match=r"nobody has given layer-0000[\d]\.bin.*pass its folder with --from"):
            await poor.first.layers(2)

    among(network, [rich, poor], main)


def test_who_gives_up_waiting_takes_nothing_from_who_waits_for_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An install that is begun anew waits before the cancelled one has ended."""
    monkeypatch.setattr(first_layers, "STILL_SECONDS", 0.5)
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network)

    async def main() -> None:
        given = await rich.weights(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poor.first.layers, 1)
            while not poor.store.wanted:
                await trio.lowlevel.checkpoint()

            async def give_up() -> None:
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
                poor.asks("rich")

            async with trio.open_nursery() as second:
                second.start_soon(give_up)
                with trio.CancelScope(shield=True):
                    assert torch.equal(await poor.weights(1), given)

    among(network, [rich, poor], main)


def test_only_one_node_of_a_home_asks_for_the_index(folder: Path) -> None:
    """Nor for layers behind it: two that write to one part spoil it, and its giver would be blamed."""
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network)
    other = Volunteer("poor", folder, Network())
    asked: list[bool] = []

    def sources() -> list[PeerShards]:
        asked.append(other.store.lock())
        return [PeerShards(RUN, "rich", network)]

    monkeyed: Any = poor.first
    monkeyed._sources = sources

    async def main() -> None:
        given = await rich.weights(1)
        other.store.folder.mkdir(parents=True)
        assert other.store.lock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poor.first.run)
            while not any("waits for a peer" in said for said in poor.said):
                await trio.lowlevel.checkpoint()
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert asked == []
            other.store.unlock()
            assert torch.equal(await poor.weights(1), given)
            nursery.cancel_scope.cancel()

    among(network, [rich], main)
    assert not any(asked) and not network.struck


def test_a_layer_that_the_disk_does_not_give_out_now_is_read_from_the_models_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volunteer = Volunteer("poor", folder, Network(), local=folder)
    store, name = volunteer.store, layer_names(volunteer.model, STAGES, 1)[0]
    store.folder.mkdir()
    (store.folder / name).write_bytes(b"kept from another time")

    def unread(place: Path, file: StoredFile) -> None:
        raise Unread("cannot read it")

    monkeypatch.setattr(layer_store, "check_file", unread)
    store.take_over(store.look(folder))
    assert store.spans(name) == open_checkpoint(folder, volunteer.model).spans(name)


def test_a_full_disk_holds_up_and_ends_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network).asks("rich")
    usage = shutil.disk_usage(folder)

    async def main() -> None:
        given = await rich.weights(1)
        while not poor.first.surveyed:
            await trio.lowlevel.checkpoint()
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 30))
        for _ in range(3):
            with pytest.raises(LayersMissing, match=r"of first weights are missing, and the disk of .*; make room"):
                await poor.first.layers(1)
            while poor.first.trouble:  # until it has tried again, with nothing that anybody waits for
                await trio.lowlevel.checkpoint()
        assert sum("make room" in said for said in poor.said) == 1 and not poor.fetched()
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))
        assert torch.equal(await poor.weights(1), given)

    among(network, [rich, poor], main)
    assert poor.fetched() == layer_names(poor.model, STAGES, 1)
    assert sum("come from peers" in said for said in poor.said) == 1, poor.said


@pytest.mark.parametrize("where", ["index", "layer"])
def test_a_disk_that_cannot_be_written_holds_up_and_ends_nothing(where: str, folder: Path) -> None:
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network).asks("rich")
    name = WEIGHTS_NAME if where == "index" else layer_names(poor.model, STAGES, 1)[0]
    tag = poor.store.part(StoredFile(name, 0, ""), "peer rich")
    in_the_way = poor.store.folder / f"{name}{PART_SUFFIX}" if where == "index" else tag
    in_the_way.mkdir(parents=True)

    async def main() -> None:
        given = await rich.weights(1)
        with pytest.raises(LayersMissing, match=r"cannot keep first weights in .*: Is a directory; tries again"):
            await poor.first.layers(1)
        in_the_way.rmdir()
        while poor.first.trouble:
            await trio.lowlevel.checkpoint()
        assert torch.equal(await poor.weights(1), given)

    among(network, [rich, poor], main)
    assert sum("cannot keep" in said for said in poor.said) == 1


def test_layers_that_the_disk_does_not_give_out_now_are_not_thrown_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    poor = Volunteer("poor", folder, network).asks("rich")
    opened = Path.open

    def out_of_descriptors(path: Path, *arguments: Any) -> Any:
        if path.suffix == ".bin":
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return opened(path, *arguments)

    async def main() -> None:
        await poor.first.layers(1)

    among(network, [rich, poor], main)
    kept = poor.fetched()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", out_of_descriptors)
        assert len(poor.store.look(None).troubles) == len(kept) > 0
    survey = poor.store.look(None)
    assert poor.fetched() == kept and survey.troubles == () and {*kept} < {*survey.have}


@pytest.mark.parametrize("twin", [False, True])
def test_layers_of_stages_that_are_not_held_go_when_others_need_their_room(folder: Path, twin: bool) -> None:
    network = Network()
    rich = Volunteer("rich", folder, network, local=folder)
    files = open_checkpoint(folder, rich.model).index().files
    layers = {stage: layer_names(rich.model, STAGES, stage) for stage in range(STAGES + 1)}
    sizes = [sum(file.size for file in files if file.name in layers[stage]) for stage in layers]
    bytes_max = sizes[2] + max(sizes[0], sizes[1])
    poor = Volunteer("poor", folder, network, bytes_max=bytes_max).asks("rich")
    other = Volunteer("poor", folder, Network(), bytes_max=bytes_max)
    """Of the same home."""
    stale = poor.store.part(StoredFile(layers[0][0], 0, ""), "somebody else")

    async def main() -> None:
        for stage in (1, 2):
            await poor.first.layers(stage)
        stale.write_bytes(b"begun once")
        poor.held.add(2)
        assert poor.fetched() == layers[1] + layers[2], "there was room for both"
        if twin:
            with pytest.raises(LayersMissing, match="raise --data-limit"):
                await poor.first.layers(0)
            assert poor.fetched() == layers[1] + layers[2] and stale.exists(), "the other one may need them"
            return
        given = await rich.weights(0)
        assert torch.equal(await poor.weights(0), given)
        assert poor.fetched() == layers[0] + [name for name in layers[1] if name in poor.store.have] + layers[2]
        assert not {*layers[1]} <= poor.store.have.keys() and {*layers[2]} <= poor.store.have.keys(), "it holds stage 2"
        assert not stale.exists()
        poor.held.add(0)
        with pytest.raises(LayersMissing, match="raise --data-limit"):
            await poor.first.layers(1)
        assert {*layers[0], *layers[2]} <= {*poor.fetched()}

    among(network, [rich, poor, *([other] if twin else [])], main)
