"""Rolls on a disk: they outlast the node, and what is not signed counts for nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import peer_id_of
from ftnode.node.links.seals import Seals
from ftnode.node.snapshots.roll_book import NAME, RollBook
from ftnode.node.snapshots.signed_words import unusable
from ftnode.node.snapshots.store import FOLDER, SnapshotStore
from ftnode.protocol.views.succession import genesis
from ftnode.protocol.words.events import Event, Rolls
from ftnode.protocol.words.messages import Roll, Signed
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version

RUN = "0" * 32
KEY = Ed25519PrivateKey.generate()
ME = Peer(peer_id_of(KEY.public_key().public_bytes_raw()), 7)
SETTINGS = Settings(RUN, stages=2, steps=100, microbatches=4, window=2)
VIEW = genesis(RUN, ME, (0, 1, 2), 3)


def roll(step: int) -> Roll:
    return Roll(VIEW, Version(step, f"commit {step}", Attempt(1, step)), ("x", "y", "z"), (Signed(ME, ""),))


def book(home: Path, told: list[Event]) -> RollBook:
    return RollBook(home, RUN, SETTINGS, Seals(ME, KEY.sign), told.append)


def kept(told: list[Event]) -> list[Roll]:
    event = told[-1]
    assert isinstance(event, Rolls)
    return list(event.kept)


def test_what_is_kept_is_signed_and_there_after_another_start(tmp_path: Path) -> None:
    told: list[Event] = []
    first = book(tmp_path, told)
    first.tell()
    assert told == []
    for step in (10, 20):
        trio.run(first.keep, roll(step))
    assert [each.version.step for each in kept(told)] == [10, 20] and kept(told)[0].signed[0].signature
    later: list[Event] = []
    book(tmp_path, later).tell()
    assert later == told[-1:]
    assert SnapshotStore(tmp_path, RUN).survey() == ((), ())


@pytest.mark.parametrize("what", ["another digest", "another run", "no json", "not there"])
def test_what_is_not_what_was_signed_counts_for_nothing(tmp_path: Path, what: str) -> None:
    trio.run(book(tmp_path, []).keep, roll(10))
    path = tmp_path / FOLDER / RUN / NAME
    text = path.read_text()
    if what == "another digest":
        path.write_text(text.replace('"x"', '"w"'))
    elif what == "another run":
        path.write_text(text.replace(RUN, "1" * 32))
    elif what == "no json":
        path.write_text(text[:-20])
    else:
        path.unlink()
    told: list[Event] = []
    said: list[str] = []
    RollBook(tmp_path, RUN, SETTINGS, Seals(ME, KEY.sign), told.append, lambda kind, text: said.append(text)).tell()
    assert told == []
    assert [line.partition(": ")[2].startswith(f"{path} cannot be used: ") for line in said] == [True] * (
        what != "not there"
    )
    assert len(unusable(tmp_path)) == (what == "no json")
    if what != "not there":
        assert what == "no json" or json.loads(path.read_text()) != json.loads(text)


def test_a_disk_that_refuses_costs_nothing_but_the_next_start(tmp_path: Path) -> None:
    told: list[Event] = []
    there = book(tmp_path, told)
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    trio.run(there.keep, roll(10))
    assert [each.version.step for each in kept(told)] == [10]
    trio.run(there.keep, replace(roll(20)))
    assert [each.version.step for each in kept(told)] == [10, 20]
