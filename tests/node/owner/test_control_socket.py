"""The control socket: what it answers, whom, and what it does not swallow; and the notes that outlast a node."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.owner import control_socket
from ftnode.node.owner.control_socket import (
    ControlError,
    ControlServer,
    Handler,
    NoAnswerYet,
    ask,
    may_ask,
    socket_path,
)
from ftnode.node.owner.pause_notes import ALL, FOLDER, read_word, write_word
from ftnode.node.owner.pause_rules import Word
from ftnode.protocol.words.errors import UserError

PEER = "12D3KooWPeerOfThisNode"


async def echo(question: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"heard": dict(question)}


@asynccontextmanager
async def serving(path: Path, **handlers: Handler) -> AsyncIterator[ControlServer]:
    server = ControlServer(path, {"echo": echo, **handlers})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        yield server
        nursery.cancel_scope.cancel()
    server.close()


async def asked(path: Path, do: str, **fields: Any) -> dict[str, Any]:
    return await trio.to_thread.run_sync(lambda: ask(path, do, **fields))


async def raw(path: Path, data: bytes) -> bytes:
    async with await trio.open_unix_socket(str(path)) as stream:
        await stream.send_all(data)
        await stream.send_eof()
        answer = bytearray()
        while part := await stream.receive_some(65536):
            answer += part
        return bytes(answer)


@pytest.mark.parametrize("depth", ["short", "d" * 60 + "/" + "e" * 90])
def test_a_question_and_its_answer(tmp_path: Path, depth: str) -> None:
    path = socket_path(tmp_path / depth, PEER)

    async def scenario() -> None:
        async with serving(path):
            assert await asked(path, "echo", now=True) == {"heard": {"do": "echo", "now": True}}
            mode = path.stat().st_mode
            assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    trio.run(scenario)
    assert not path.exists()


def test_a_dead_nodes_socket_is_replaced_and_nobody_there_is_an_error(tmp_path: Path) -> None:
    path = socket_path(tmp_path, PEER)
    with pytest.raises(ControlError, match="does not answer"):
        ask(path, "echo")
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(ControlError, match="does not answer"):
        ask(path, "echo")

    async def scenario() -> None:
        async with serving(path):
            assert await asked(path, "echo")

    trio.run(scenario)


def test_who_is_busy_hears_the_question_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nobody asks a second time by a signal, which would end it without a hand-over."""
    monkeypatch.setattr(control_socket, "SECONDS", 0.1)
    path, heard = socket_path(tmp_path, PEER), trio.Event()

    async def leave(_question: Mapping[str, Any]) -> Mapping[str, Any]:
        heard.set()
        return {}

    async def scenario() -> None:
        server = ControlServer(path, {"leave": leave})
        with pytest.raises(NoAnswerYet):
            await asked(path, "leave")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            with trio.fail_after(10):
                await heard.wait()
            nursery.cancel_scope.cancel()
        server.close()

    trio.run(scenario)


def test_nonsense_is_answered_or_dropped_and_the_next_one_is_heard(tmp_path: Path) -> None:
    path = socket_path(tmp_path, PEER)

    async def scenario() -> None:
        async with serving(path):
            for line in (b"\n", b"[]\n", b"{\n", b'"x"\n', b"[" * 3000 + b"\n", b"\xff\n"):
                assert "error" in json.loads(await raw(path, line)), line
            assert "is known as 'format'" in json.loads(await raw(path, b'{"do": "format"}\n'))["error"]
            for line in (b"", b"no end", b"x" * (control_socket.QUESTION_BYTES_MAX + 1) + b"\n"):
                with suppress(trio.BrokenResourceError, OSError):
                    assert await raw(path, line) == b""
            assert await asked(path, "echo")

    trio.run(scenario)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), ValueError("embedded null byte")])
def test_a_handler_that_fails_is_answered(tmp_path: Path, error: Exception) -> None:
    path = socket_path(tmp_path, PEER)

    async def save(_question: Mapping[str, Any]) -> Mapping[str, Any]:
        raise error

    async def scenario() -> None:
        async with serving(path, save=save):
            with pytest.raises(ControlError, match=r"^save failed: .*(Permission denied|embedded null byte)"):
                await asked(path, "save")

    trio.run(scenario)


def test_who_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "SECONDS", 0.05)
    path = socket_path(tmp_path, PEER)

    async def scenario() -> None:
        async with serving(path):
            async with await trio.open_unix_socket(str(path)) as silent:
                with trio.fail_after(10):
                    assert await silent.receive_some(1) == b""
            assert await raw(path, b'{"do": "echo"}\n')

    trio.run(scenario)


def test_only_so_many_at_once(tmp_path: Path) -> None:
    path = socket_path(tmp_path, PEER)

    async def scenario() -> None:
        async with serving(path):
            waiting = [await trio.open_unix_socket(str(path)) for _ in range(control_socket.CONNECTIONS_MAX)]
            with trio.fail_after(control_socket.SECONDS / 2):
                async with await trio.open_unix_socket(str(path)) as one_more:
                    assert await one_more.receive_some(1) == b""
            for stream in waiting:
                await stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert await asked(path, "echo")

    trio.run(scenario)


@pytest.mark.parametrize(("user", "allowed"), [(1000, True), (0, True), (1001, False), (65534, False)])
def test_nobody_elses_processes_may_ask(user: int, allowed: bool) -> None:
    assert may_ask(user, 1000) == allowed


def test_a_stranger_gets_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user, as far as the kernel's word is concerned."""
    path = socket_path(tmp_path, PEER)
    monkeypatch.setattr(control_socket, "may_ask", lambda user, owner: user != os.getuid())

    async def scenario() -> None:
        async with serving(path):
            with pytest.raises(ControlError, match="does not answer"):
                await asked(path, "echo")

    trio.run(scenario)


def test_closed_before_it_could_begin_it_does_not_hide_the_cause(tmp_path: Path) -> None:
    server = ControlServer(socket_path(tmp_path, PEER), {})
    server.close()
    trio.run(server.run)


# -- notes


def test_the_newest_word_counts(tmp_path: Path) -> None:
    assert read_word(tmp_path, PEER) is None
    write_word(tmp_path, ALL, Word(True, 5000.0, 100.0))
    assert read_word(tmp_path, PEER) == Word(True, 5000.0, 100.0)
    write_word(tmp_path, PEER, Word(False, None, 200.0))
    assert read_word(tmp_path, PEER) == Word(False, None, 200.0)
    assert read_word(tmp_path, "another") == Word(True, 5000.0, 100.0)
    write_word(tmp_path, ALL, Word(False, None, 300.0))
    assert read_word(tmp_path, PEER) == read_word(tmp_path, "another") == Word(False, None, 300.0)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["all.json"]


def test_a_clock_that_was_set_back_does_not_make_a_word_old(tmp_path: Path) -> None:
    write_word(tmp_path, ALL, Word(True, None, 1e9))
    write_word(tmp_path, PEER, Word(False, None, 100.0))
    assert read_word(tmp_path, PEER) is not None and not read_word(tmp_path, PEER).paused  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"paused": false}', '{"paused": 1, "until": "x", "written": 1}'])
def test_a_note_that_cannot_be_read_leaves_the_machine_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "all.json").write_text(text)
    word = read_word(tmp_path, PEER)
    assert word is not None and word.paused and word.until is None
    write_word(tmp_path, ALL, Word(False, None, 100.0))
    assert read_word(tmp_path, PEER) == Word(False, None, 100.0)


def test_a_word_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    with pytest.raises(UserError, match="cannot write") as raised:
        write_word(tmp_path, ALL, Word(True))
    assert raised.value.exit_code == 73
