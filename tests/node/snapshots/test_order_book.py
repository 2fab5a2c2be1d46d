"""An order of members on a disk: it outlasts the node, and what nobody has signed counts for nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import peer_id_of
from ftnode.node.links.seals import Seals
from ftnode.node.snapshots.order_book import OrderBook
from ftnode.node.snapshots.signed_words import ORDERS, unusable
from ftnode.protocol.words.events import Event, OrderKept
from ftnode.protocol.words.messages import MembersOrder, Signed, UndoVote
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from tests.protocol.situations import view_of

RUN = "run"
KEYS = [Ed25519PrivateKey.generate() for _ in range(2)]
ME, OTHER = (Peer(peer_id_of(key.public_key().public_bytes_raw()), 7) for key in KEYS)
SETTINGS = Settings(RUN, stages=2, steps=100, microbatches=4, window=2)
VIEW = replace(view_of((ME,), (OTHER,), (OTHER,)), leader=ME, voters=(ME, OTHER))


def order(step: int = 40) -> MembersOrder:
    """As our core gives it: what we have said ourselves is not signed yet."""
    vote = Seals(OTHER, KEYS[1].sign).sealed(UndoVote(VIEW.lineage.id, VIEW.number, VIEW.digest(), 1, step, 0))
    assert isinstance(vote, UndoVote)
    return MembersOrder(VIEW, 1, step, (Signed(ME, ""), Signed(OTHER, vote.signature)))


def kept(home: Path, says: list[str]) -> list[MembersOrder]:
    """What the next life hears, which has another nonce."""
    told: list[Event] = []
    seals = Seals(Peer(ME.id, 8), KEYS[0].sign)
    OrderBook(home, RUN, SETTINGS, seals, told.append, lambda kind, text: says.append(text)).tell()
    return [event.order for event in told if isinstance(event, OrderKept)]


def keep(home: Path, step: int = 40) -> Path:
    trio.run(OrderBook(home, RUN, SETTINGS, Seals(ME, KEYS[0].sign), lambda event: None).keep, order(step))
    return home / ORDERS / f"{RUN}.json"


def test_the_newest_is_there_after_another_start(tmp_path: Path) -> None:
    says: list[str] = []
    assert kept(tmp_path, says) == []
    keep(tmp_path)
    keep(tmp_path, 30)
    (found,) = kept(tmp_path, says)
    assert (found.number, found.step, found.signers()) == (1, 30, {ME, OTHER}) and not says
    assert all(each.signature for each in found.signed)


def test_what_is_no_order_any_more_is_gone(tmp_path: Path) -> None:
    says: list[str] = []
    book = OrderBook(tmp_path, RUN, SETTINGS, Seals(ME, KEYS[0].sign), lambda event: None)
    trio.run(book.keep, None)
    keep(tmp_path)
    trio.run(book.keep, None)
    assert kept(tmp_path, says) == [] and not says


def text_of(change: Callable[[list[object]], object]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        (plain,) = json.loads(text)
        change(plain)
        return json.dumps([plain])

    return changed


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda text: text[:20], "cannot be used"),
        (lambda text: "[]", "cannot be used"),
        (lambda text: "[" * 100_000, "cannot be used"),
        (text_of(lambda plain: plain.__setitem__(2, 41)), "a signature that is not by"),
        (text_of(lambda plain: plain.__setitem__(1, 0)), "no order of this run"),
        (text_of(lambda plain: plain.__setitem__(2, 101)), "no order of this run"),
    ],
)
def test_what_is_damaged_or_signed_by_nobody_is_not_used_and_said(
    tmp_path: Path, spoil: Callable[[str], str], why: str
) -> None:
    path, says = keep(tmp_path), list[str]()
    path.write_text(spoil(path.read_text()))
    assert kept(tmp_path, says) == []
    (said,) = says
    assert said.startswith("whether members ordered to roll back is not known from before: ") and why in said


def test_a_file_that_is_damaged_as_a_whole_is_among_the_unusable(tmp_path: Path) -> None:
    path = keep(tmp_path)
    (path.parent / f"{RUN}-{ME.id}.json").write_text("{}")  # what an owner was told
    assert unusable(tmp_path) == []
    path.write_text("{")
    (line,) = unusable(tmp_path)
    assert line.startswith(f"{path} cannot be used")


def test_a_disk_that_takes_nothing_ends_nobody(tmp_path: Path) -> None:
    (tmp_path / ORDERS).write_text("no folder")
    keep(tmp_path)
