"""`ftnode run rollback --before-lies`: an author goes by what its own nodes saw, and by nothing made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import home_path, peer_id_of
from ftnode.node.links.seals import Seals
from ftnode.node.manifests import fetch
from ftnode.node.manifests.authorship import signer
from ftnode.node.snapshots.liar_book import FOLDER, LiarBook
from ftnode.node.watch import light_client
from ftnode.node.watch.status import ConvictedRow, Speaker, SwarmStatus
from ftnode.protocol.manifest.parse import Manifest, parse, settings
from ftnode.protocol.words.effects import KeepConvicted
from ftnode.protocol.words.messages import Convicted, Judge, Poisoned, Verdict
from ftnode.protocol.words.types import Attempt, Peer
from tests.node.cli.cli_runner import Seen

Run = Callable[..., Seen]
KEYS = [Ed25519PrivateKey.generate() for _ in range(4)]
ACCUSER, JUDGE, LIAR, OTHER = (Peer(peer_id_of(key.public_key().public_bytes_raw()), 7) for key in KEYS)


@dataclass
class Swarm:
    """What the peers that are asked say, and the manifests that they were shown."""

    step: int = 100
    told: tuple[ConvictedRow, ...] = ()
    shown: list[str] = field(default_factory=list)

    def status(self, addresses: tuple[str, ...], timeout: float, run: str) -> SwarmStatus:
        return SwarmStatus(Speaker("x", "0", "", "volunteer", ""), run=run, step=self.step, convicted=self.told)

    def show(self, addresses: tuple[str, ...], manifest: Manifest, text: str, timeout: float) -> None:
        self.shown.append(text)


@dataclass
class Author:
    """Its manifest, and what its command prints."""

    path: Path
    command: Run
    swarm: Swarm

    @property
    def manifest(self) -> Manifest:
        return parse(self.path.read_text())

    @property
    def book(self) -> Path:
        return home_path(None) / FOLDER / f"{self.manifest.run_id}.json"

    def order(self, *options: object) -> Seen:
        peer = f"/ip4/127.0.0.1/tcp/9/p2p/{self.manifest.run.author}"
        return self.command("run", "rollback", self.path, *(options or ("--before-lies",)), "--peer", peer)

    def sees(self, liar: Peer, step: int, committed: int | None = None, order: int = 0) -> None:
        """A node of its home keeps words about somebody."""
        me = Seals(ACCUSER, KEYS[0].sign)
        case = me.sealed(Seals(JUDGE, KEYS[1].sign).sealed(words(liar, step)))
        assert isinstance(case, Convicted)
        book = LiarBook(home_path(None), self.manifest.run_id, settings(self.manifest), me, lambda event: None)
        trio.run(book.keep, KeepConvicted(case, step - 1 if committed is None else committed, order))

    def spoil(self, change: Callable[[str], str]) -> None:
        self.book.write_text(change(self.book.read_text()))

    def nothing_is_ordered(self) -> bool:
        return not self.swarm.shown and self.manifest.membership.rollback_order == 0


def words(liar: Peer, step: int) -> Convicted:
    said = Poisoned("line", 3, step, Attempt(3, 2), 1, -1, "1 of its size away", liar, 1.0)
    return Convicted(ACCUSER, said, ((JUDGE, Verdict(Judge.of(ACCUSER, said, liar), True, "found the same")),))


@pytest.fixture
def author(tmp_path: Path, text_file: Path, ftnode: Run, monkeypatch: pytest.MonkeyPatch) -> Author:
    path, swarm = tmp_path / "kept.toml", Swarm()
    assert ftnode("run", "init", path, "--data", text_file, "--snapshot-every", 5).code == 0
    monkeypatch.setattr(light_client, "fetch_status", swarm.status)
    monkeypatch.setattr(fetch, "show_manifest", swarm.show)
    return Author(path, ftnode, swarm)


def test_of_several_lies_it_goes_before_the_first(author: Author) -> None:
    author.sees(LIAR, 60)
    author.sees(OTHER, 41)
    seen = author.order()
    assert seen.code == 0, seen
    assert f"the first lie that a node here saw proven: {OTHER.id} lied in step 41: 1 of its size away" in seen.out
    assert "back to step 40 " in seen.out and "at least 60 steps are lost where its disks have" in seen.out
    assert "and else nothing changes" in seen.out and LIAR.id not in seen.out
    (text,) = author.swarm.shown
    assert text == author.path.read_text() and signer(author.manifest, text) == author.manifest.run.author
    membership = author.manifest.membership
    assert (membership.rollback_order, membership.rollback_to) == (membership.revision, 40)


def test_json_names_the_lie_and_what_was_passed_over(author: Author) -> None:
    author.sees(OTHER, 1, committed=50)
    author.sees(LIAR, 60)
    author.swarm.told = (ConvictedRow("z", 3, "made up", ("y",)), ConvictedRow("w", 70, "later", ("y",)))
    found = json.loads(author.order("--before-lies", "--json").out)
    assert (found["to_step"], found["step"], found["undone_steps"]) == (59, 100, 41)
    assert found["before_lie"] == {
        "peer": LIAR.id, "step": 60, "reason": "1 of its size away", "signed_by": [ACCUSER.id, JUDGE.id]
    }  # fmt: skip
    assert [(row["peer"], row["step"]) for row in found["passed_over"]] == [(OTHER.id, 1), ("z", 3)]
    told = author.order("--before-lies")
    assert told.code == 75, "there is an order that goes before it"


def test_where_nothing_is_proven_nothing_is_written(author: Author) -> None:
    """Whatever the peers that are asked say: an invented volunteer can be said to have lied, and by anybody."""
    author.swarm.told = (ConvictedRow(LIAR.id, 2, "made up", (ACCUSER.id, JUDGE.id)),)
    assert author.order().refused(75, "no node of this home has seen a lie proven in kept", "--to-step N")
    assert author.nothing_is_ordered()


def _earlier(text: str) -> str:
    """In all words, and heard of as early."""
    plain: Any = json.loads(text.replace("41, [3, 2]", "2, [3, 2]"))
    plain[0][1] = 1
    return json.dumps(plain)


def _somebody_else(text: str) -> str:
    return text.replace(LIAR.id, OTHER.id)


def _unsigned(text: str) -> str:
    plain: Any = json.loads(text)
    plain[0][0][1][-1] = ""
    return json.dumps(plain)


@pytest.mark.parametrize("change", [_earlier, _somebody_else, _unsigned])
def test_a_forged_lie_is_refused(author: Author, change: Callable[[str], str]) -> None:
    author.sees(LIAR, 41)
    before = author.book.read_text()
    author.spoil(change)
    assert author.book.read_text() != before
    assert author.order().code == 75 and author.nothing_is_ordered()


def test_a_damaged_file_is_not_told_as_nobody_having_lied(author: Author) -> None:
    author.sees(LIAR, 41)
    author.spoil(lambda text: text[:-20])
    seen = author.order()
    assert seen.code == 75 and f"{author.book} cannot be used: " in seen.err and author.nothing_is_ordered()


def test_planted_signatures_are_not_looked_at(author: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then forged words have an author undo what was honest."""
    author.sees(LIAR, 41)
    author.spoil(_earlier)
    monkeypatch.setattr(Seals, "check", lambda self, sender, message: None)
    assert author.order().code == 0 and author.manifest.membership.rollback_to == 1


def test_what_was_heard_only_later_is_passed_over(author: Author) -> None:
    """A liar can sign two tensors of step 1 at any time."""
    author.sees(LIAR, 1, committed=90)
    assert author.order().code == 75 and author.nothing_is_ordered()
    author.sees(OTHER, 95)
    seen = author.order()
    assert f"passed over: {LIAR.id} lied in step 1, heard here only later" in seen.out
    assert author.manifest.membership.rollback_to == 94


def test_what_an_order_goes_before_is_not_undone_again(author: Author) -> None:
    author.sees(LIAR, 41)
    assert author.order().code == 0
    assert author.order().refused(75, "the order to go back to step 40 goes before every lie")
    author.sees(OTHER, 70, order=author.manifest.membership.rollback_order)
    assert author.order().code == 0 and author.manifest.membership.rollback_to == 69


def test_one_of_the_two_is_needed(author: Author) -> None:
    author.sees(LIAR, 41)
    assert author.order("--before-lies", "--to-step", 3).refused(64, "exclude each other")
    assert author.order("--json").refused(64, "one is needed")
    author.swarm.step = 40
    assert author.order().refused(64, "nothing after step 40 can be undone")
    assert author.nothing_is_ordered()
