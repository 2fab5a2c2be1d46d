"""A run's name belongs to nobody: whoever announces another run by it is a line of text, and ends no node."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import trio
import trio.testing

from ftnode.node.directory.link import DirectoryDown
from ftnode.node.directory.records import RUNS_KEY, RunNotice, Statement, sign_record
from ftnode.node.life import node as node_module
from ftnode.node.manifests.book import ManifestBook
from ftnode.node.manifests.namesakes import namesakes_line
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.owner.announcements import Speaking
from ftnode.protocol.words.events import Directory, DirectoryLost
from tests.node.directory.signers import Signer, signer

TINY = PRESETS["tiny"]
A, B = signer(1), signer(2)


class Notices:
    """A directory that knows these runs; None: it does not answer."""

    def __init__(self, *items: list[Any], down: bool = False) -> None:
        self.items, self.down = list(items), down

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise DirectoryDown("no answer")
        assert (op, fields) == ("get", {"key": RUNS_KEY})
        return {"items": self.items}


def notice(who: Signer, run: str, name: str = TINY.run.name) -> list[Any]:
    made = int(time.time() * 1000)
    record = sign_record(Statement(run, who.peer, made, made + 30_000, RunNotice(name, ())), who.sign)
    return [who.peer.id, record, (made + 30_000) / 1000]


def line(*items: list[Any], down: bool = False) -> str:
    link: Any = Notices(*items, down=down)
    return trio.run(namesakes_line, link, TINY)


def test_another_run_of_the_name_is_one_bounded_line() -> None:
    said = line(notice(A, "f" * 64), notice(B, "0123456789abcdef"))
    assert "01234567, ffffffff" in said and TINY.run_id[:8] in said and "\n" not in said
    many = line(*(notice(signer(number), f"{number:08d}" + "x" * 56) for number in range(60)))
    assert len(many) < 400 and "and 57 more" in many


def test_nothing_is_said_of_other_names_of_our_own_run_or_without_an_answer() -> None:
    assert line() == line(notice(A, "ab" * 8, "other")) == line(notice(A, "ab" * 8), down=True) == ""
    assert line(notice(A, "ab" * 8), notice(B, TINY.run_id)) == ""


def test_a_notice_of_somebody_else_ends_no_node_and_keeps_nothing_from_the_core(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    heard: list[Directory | DirectoryLost] = []
    trouble = ""

    class Core:
        deliver = staticmethod(heard.append)

    class Found:
        link: Any = Notices(notice(A, "f" * 64))
        link.met, link.unreachable = set(), {}

    class Clock:
        clock_trouble = staticmethod(lambda: trouble)

    class Config:
        manifest, home, peers, given = TINY, tmp_path, (), ()

    async def main() -> None:
        nonlocal trouble
        beginning: Any = node_module.Node.__new__(node_module.Node)
        beginning.config, beginning.driver, beginning.directory, beginning.observer = Config, Core, Found, Clock
        beginning.book = ManifestBook(TINY, "", tmp_path, lambda newer: None)
        beginning.speaking, beginning.failure, beginning._met_somebody = Speaking(False), None, False
        async with trio.open_nursery() as nursery:
            beginning._nursery = nursery
            for _ in range(3):
                beginning._on_directory(Directory((), ()))
                assert heard[-1:] == [Directory((), ())], "at once: nobody waits for the look"
                await trio.testing.wait_all_tasks_blocked()
        assert beginning.failure is None
        trouble = "this machine's clock is an hour off"
        beginning._on_directory(Directory((), ()))
        assert isinstance(heard.pop(), DirectoryLost), "by such a clock nobody is seen, whoever is there"

    trio.run(main)
    assert len(heard) == 3 and caplog.text.count("somebody announces another run") == 1
