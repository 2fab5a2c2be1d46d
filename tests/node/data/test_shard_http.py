"""Shards from a web server on loopback: resumed where they were cut off, bounded, and hashed like all others."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio

from ftnode.models.shards import INDEX_NAME, StoredFile
from ftnode.node.data import fetching
from ftnode.node.data.shard_http import HttpShards
from ftnode.node.data.shard_sources import Delivery, NotFetched
from tests.node.data.corpora import shards
from tests.node.data.shard_swarm import Network, Volunteer, run, served


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return shards(tmp_path / "built").folder


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSES_SECONDS", (0.01,))


def fetched(
    tmp_path: Path, built: Path, base: str, *, part: tuple[str, bytes] | None = None, peer: bool = False
) -> Volunteer:
    """A volunteer that has fetched everything from there. `part`: what was there of a file. `peer`: a good one, too."""
    network = Network()
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network, sources=[HttpShards(base)])
    if peer:
        poor.asks("rich")
    if part is not None:
        poor.store.folder.mkdir()
        poor.store.part(StoredFile(part[0], 0, ""), base).write_bytes(part[1])

    async def main() -> None:
        await rich.shards.run()
        await poor.shards.run()

    run(network, main)
    for path in built.iterdir():
        assert (poor.store.folder / path.name).read_bytes() == path.read_bytes()
    assert not list(poor.store.folder.glob("*.part"))
    return poor


def test_everything_comes_over_http(tmp_path: Path, built: Path) -> None:
    with served(built) as (base, asked):
        assert fetched(tmp_path, built, base + "/").shards.head() == (True, "")
    assert {path for path, _ in asked} == {f"/data/{path.name}" for path in built.iterdir()}
    assert len(asked) == len(list(built.iterdir()))


@pytest.mark.parametrize("plain", [False, True])
def test_what_was_cut_off_goes_on_by_range_where_the_server_knows_it(plain: bool, tmp_path: Path, built: Path) -> None:
    half = (built / "training-00000.bin").read_bytes()[:777]
    with served(built, plain) as (base, asked):
        fetched(tmp_path, built, base, part=("training-00000.bin", half))
    assert asked.count(("/data/training-00000.bin", "bytes=777-")) == 1
    assert len(asked) == len(list(built.iterdir()))


def test_a_beginning_that_does_not_fit_is_thrown_away(tmp_path: Path, built: Path) -> None:
    with served(built) as (base, asked):
        poor = fetched(tmp_path, built, base, part=("training-00000.bin", b"x" * 777))
    wanted = [ranged for path, ranged in asked if path == "/data/training-00000.bin"]
    assert wanted == ["bytes=777-", ""]
    assert f"training-00000.bin of {base} does not have its hash: thrown away" in poor.said


@pytest.mark.parametrize("damage", ["flip", "grow", "shrink", "remove", "index"])
def test_a_damaged_file_there_comes_from_a_peer(damage: str, tmp_path: Path, built: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    path = copy / (INDEX_NAME if damage == "index" else "training-00000.bin")
    if damage == "remove":
        path.unlink()
    elif damage == "shrink":
        os.truncate(path, 100)
    else:
        data = bytearray(path.read_bytes())
        data[3] ^= 1
        path.write_bytes(data + (b"more" if damage == "grow" else b""))
    with served(copy) as (base, _):
        poor = fetched(tmp_path, built, base, peer=True)
    assert poor.shards.head() == (True, "")


def test_what_came_before_a_line_broke_is_kept() -> None:
    """However little: a slow line gets less than a block in its turn."""
    given, came = 300_000, 0

    async def half(stream: trio.SocketStream) -> None:
        await stream.receive_some(1 << 16)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(given))
        await stream.aclose()

    async def main() -> None:
        nonlocal came
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, half, listeners)
            port = listeners[0].socket.getsockname()[1]
            with pytest.raises(NotFetched), trio.fail_after(10):
                async with HttpShards(f"http://127.0.0.1:{port}").open("shard", 0, 1 << 20) as delivery:
                    async for block in delivery.blocks:
                        came += len(block)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert came == given


class Endless:
    """Gives the index, and of every other file more than there is."""

    label = "endless"

    def __init__(self, built: Path) -> None:
        self.built, self.given = built, 0

    @asynccontextmanager
    async def open(self, name: str, start: int, size_max: int) -> AsyncIterator[Delivery]:
        async def blocks() -> AsyncIterator[bytes]:
            if name == INDEX_NAME:
                yield (self.built / INDEX_NAME).read_bytes()
            else:
                while True:
                    self.given += 1000
                    yield b"x" * 1000

        async with aclosing(blocks()) as given:
            yield Delivery(0, 0, given)

    def blame(self, reason: str) -> None: ...


def test_what_does_not_end_is_not_read_to_its_end(tmp_path: Path, built: Path) -> None:
    network, endless = Network(), Endless(built)
    rich = Volunteer("rich", tmp_path, built, network, local=built)
    poor = Volunteer("poor", tmp_path, built, network, sources=[endless]).asks("rich")

    async def main() -> None:
        await rich.shards.run()
        await poor.shards.run()

    run(network, main)
    assert poor.store.complete and endless.given <= 4000


def test_a_password_in_the_address_is_used_and_never_shown(
    tmp_path: Path, built: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    keys: list[str] = []
    with served(built, keys=keys) as (base, _):
        poor = fetched(tmp_path, built, base.replace("http://", "http://anna:s%40cret@"))
        (built / "training-00000.bin").rename(built / "away")
        with pytest.raises(NotFetched, match="404") as caught:
            trio.run(opened, HttpShards(base.replace("http://", "http://anna:s%40cret@")))
    assert set(keys) == {httpx.BasicAuth("anna", "s@cret")._auth_header}
    assert "/data/" in caplog.text, "httpx says what it asks for"
    assert not any("cret" in text for text in (caplog.text, str(caught.value), *poor.said))


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(NotFetched):
        trio.run(opened, HttpShards("http://[::1"))


async def opened(source: HttpShards) -> None:
    async with source.open("training-00000.bin", 0, 1 << 30):
        raise AssertionError("it was given")


def test_nobody_there(tmp_path: Path, built: Path) -> None:
    with served(built) as (base, _):
        pass
    poor = fetched(tmp_path, built, base, peer=True)
    assert any(said.startswith(f"nothing from {base}: {INDEX_NAME}: ") for said in poor.said)


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (200, {"Content-Length": "1000001"}, "1000001 bytes there, where at most 1000"),
        (206, {"Content-Range": "bytes 0-99/100", "Content-Length": "100"}, "another range than asked for"),
        (206, {}, "another range than asked for"),
        (500, {}, "500 Internal Server Error"),
        (302, {"Location": "http://127.0.0.1:1/data"}, "redirects"),
    ],
)
def test_answers_that_do_not_fit(
    status: int, headers: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers=headers, request=request)

    original = httpx.AsyncClient.__init__

    def init(self: httpx.AsyncClient, **options: object) -> None:
        original(self, transport=httpx.MockTransport(respond), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx.AsyncClient, "__init__", init)

    async def main() -> None:
        with trio.fail_after(5):
            async with HttpShards("http://127.0.0.1:1/data").open("training-00000.bin", 10, 1000):
                pass

    with pytest.raises(NotFetched, match=says):
        trio.run(main)
