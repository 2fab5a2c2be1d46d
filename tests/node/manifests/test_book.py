"""The manifest that a node works by, while it runs: which newer ones it takes from peers, and which never."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgpack
import pytest
import trio

from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.manifests.authorship import author_key, sign
from ftnode.node.manifests.book import ManifestBook, saved
from ftnode.node.manifests.exchange import (
    MANIFEST_PROTOCOL,
    answer,
    manifest_handler,
    read_manifest_reply,
    read_refusal,
    request_for,
)
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.manifests.spread import Spreading
from ftnode.protocol.manifest.parse import Manifest, Membership, parse, render
from ftnode.protocol.views.succession import genesis
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Directory, LinkDown
from tests.node.directory.signers import presence
from tests.node.directory.signers import signer as made_signer
from tests.node.links.linked_node import Node, limited, node

ONE, TWO, THREE = (made_signer(number).peer.id for number in (1, 2, 3))


class Author:
    """Signs the tiny run for these peers."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def text(
        self, *peers: str, revision: int = 0, join: str = "listed", steps: int = 400, snapshot_every: int = 0
    ) -> str:
        key = author_key(home_directory(str(self.home)))
        try:
            tiny = PRESETS["tiny"]
            membership = Membership(join=join, peers=peers, revision=revision)
            run = replace(tiny.run, author=key.peer_id, steps=steps)
            recovery = replace(tiny.recovery, snapshot_every=snapshot_every)
            return sign(render(replace(tiny, run=run, membership=membership, recovery=recovery)), key)
        finally:
            key.release()


@pytest.fixture
def author(tmp_path: Path) -> Author:
    return Author(tmp_path / "author")


@pytest.fixture
def news() -> list[Manifest]:
    return []


@pytest.fixture
def open_book(tmp_path: Path, news: list[Manifest]) -> Callable[[str], ManifestBook]:
    return lambda text: ManifestBook(parse(text), text, tmp_path / "node", news.append)


def show(book: ManifestBook, text: str) -> str:
    """What a peer hears that shows us a manifest."""
    return read_refusal(answer(book, request_for(book.manifest.run_id, text)))


def test_a_newer_list_of_the_author_replaces_ours_and_is_kept(
    author: Author, open_book: Callable[[str], ManifestBook], news: list[Manifest], tmp_path: Path
) -> None:
    book = open_book(author.text(ONE, revision=1))
    assert book.admits(ONE) and not book.admits(TWO)
    newer = author.text(ONE, TWO, revision=2)
    assert show(book, newer) == ""
    assert book.admits(TWO) and not book.admits(THREE)
    assert [manifest.membership.revision for manifest in news] == [2]
    kept = saved(tmp_path / "node", book.manifest.run_id)
    assert kept is not None and kept[1] == newer
    assert show(book, newer) == "" and len(news) == 1, "the same again is no news"


def test_an_older_list_or_another_one_of_the_same_number_is_refused(
    author: Author, open_book: Callable[[str], ManifestBook], news: list[Manifest]
) -> None:
    book = open_book(author.text(ONE, revision=2))
    assert show(book, author.text(ONE, TWO, revision=1)) == "it has revision 1, the one in force 2"
    assert show(book, author.text(ONE, TWO, revision=2)) == "it has revision 2, the one in force 2"
    assert not book.admits(TWO) and not news


@pytest.mark.parametrize("what", ["another author", "unsigned", "edited", "another run", "no manifest", "too long"])
def test_what_the_author_did_not_sign_is_never_taken(
    author: Author, open_book: Callable[[str], ManifestBook], news: list[Manifest], tmp_path: Path, what: str
) -> None:
    book = open_book(author.text(ONE, revision=1))
    good = author.text(ONE, TWO, revision=2)
    texts = {
        "another author": Author(tmp_path / "mallory").text(ONE, TWO, revision=2),
        "unsigned": good.partition("[signature]")[0],
        "edited": good.replace("revision = 2", "revision = 3"),
        "another run": author.text(ONE, TWO, revision=2, steps=401),
        "no manifest": "hello",
        "too long": good + "#" * ((1 << 20) + 1 - len(good)),
    }
    assert show(book, texts[what]) != ""
    assert not book.admits(TWO) and not news and saved(tmp_path / "node", book.manifest.run_id) is None


def test_a_run_without_an_author_changes_for_nobody(author: Author, open_book: Callable[[str], ManifestBook]) -> None:
    text = render(PRESETS["tiny"])
    book = open_book(text)
    newer = render(replace(PRESETS["tiny"], membership=Membership(join="listed", peers=(ONE,), revision=1)))
    assert "no author" in show(book, newer)
    assert book.admits(TWO)


def test_the_manifest_is_told_to_whoever_asks_about_this_run(
    author: Author, open_book: Callable[[str], ManifestBook]
) -> None:
    text = author.text(ONE)
    book = open_book(text)
    assert read_manifest_reply(answer(book, request_for(book.manifest.run_id))).decode() == text
    with pytest.raises(PeerError, match="another run"):
        read_manifest_reply(answer(book, request_for("0" * 32)))


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({"format": 2}),
        msgpack.packb({"format": 1, "run": "R", "show": 5}),
    ],
)
def test_requests_that_are_none_cost_the_stream(
    author: Author, open_book: Callable[[str], ManifestBook], request_bytes: bytes
) -> None:
    book = open_book(author.text(ONE))
    request_bytes = request_bytes.replace(b"\xa1R", b"\xd9\x20" + book.manifest.run_id.encode())
    with pytest.raises(PeerError):
        answer(book, request_bytes)


def test_the_directory_names_only_who_is_admitted(author: Author, open_book: Callable[[str], ManifestBook]) -> None:
    found = Directory((presence(made_signer(1)), presence(made_signer(2))), ())
    assert open_book(author.text(ONE)).admitted(found) == Directory(found.presences[:1], ())
    assert open_book(author.text(join="open")).admitted(found) == found


def test_a_view_names_only_peers_that_have_been_listed(
    author: Author, open_book: Callable[[str], ManifestBook]
) -> None:
    first, second, third = (made_signer(number).peer for number in (1, 2, 3))
    ours, theirs = genesis("r", first, (0, 1), 2), genesis("r", second, (0, 1), 2)
    joined = replace(ours, holders=((first,), (third,)))
    book = open_book(author.text(ONE, revision=1))
    assert book.stranger_in((ours,)) == "" and book.stranger_in((ours, joined)) == third.id
    assert book.stranger_in((replace(ours, voters=(first, second)),)) == second.id
    assert book.admitted(Directory((), (ours, theirs, joined))).certificates == (ours,)
    book.offer(author.text(TWO, revision=2).encode())
    assert book.stranger_in((theirs, ours)) == "", "those who were removed are named until they are replaced"
    assert open_book(author.text(join="open")).stranger_in((theirs, joined)) == ""


def test_what_is_kept_is_checked_when_it_is_read(
    author: Author, open_book: Callable[[str], ManifestBook], tmp_path: Path
) -> None:
    book = open_book(author.text(ONE, revision=1))
    show(book, author.text(ONE, TWO, revision=2))
    (path,) = (tmp_path / "node" / "manifests").iterdir()
    path.write_text(path.read_text().replace("revision = 2", "revision = 9"))
    assert saved(tmp_path / "node", book.manifest.run_id) is None


class Refused(NamedTuple):
    """`there` is not on the list by which `here` goes, and has been told so."""

    here: Node
    there: Node
    book: ManifestBook
    theirs: ManifestBook
    spreading: Spreading


@asynccontextmanager
async def refused(tmp_path: Path, ours: str, theirs: str) -> AsyncIterator[Refused]:
    book = ManifestBook(parse(ours), ours, tmp_path / "node", lambda manifest: here.transport.drop_unlisted())
    others = ManifestBook(parse(theirs), theirs, tmp_path / "other", lambda manifest: None)
    async with (
        node(home_directory(str(tmp_path / "here")), book=book) as here,
        node(tmp_path / "there", 2) as there,
        trio.open_nursery() as nursery,
    ):
        await here.p2pd.serve(MANIFEST_PROTOCOL, manifest_handler(book))
        spreading = Spreading(others, there.transport)
        nursery.start_soon(spreading.run)
        there.transport.know(here.peer.id, await here.signed())
        there.transport.dial(here.peer)
        assert not (await there.next(LinkDown)).refused, "it may be listed later"
        yield Refused(here, there, book, others, spreading)
        nursery.cancel_scope.cancel()


def test_on_the_wire_who_is_not_listed_is_refused_until_it_shows_a_newer_list(author: Author, tmp_path: Path) -> None:
    """And who is listed no more is cut off."""

    async def main() -> None:
        name = peer_id_in(tmp_path / "there")
        older, newer, last = (author.text(*names, revision=n) for n, names in enumerate([(ONE,), (ONE, name), (ONE,)]))
        async with refused(tmp_path, older, newer) as (here, there, book, _, spreading):
            assert there.refusals == ["you are not on this run's list (revision 0); ask its author to add you"]
            spreading.show_to(here.peer.id)
            with trio.fail_after(10):
                while not book.admits(name):
                    await trio.lowlevel.checkpoint()
            await there.meet(here)
            assert show(book, last) == ""
            assert (await there.next(LinkDown)).reason
            down = await here.next(LinkDown)
            assert (down.peer, down.refused) == (there.peer, True), "nobody waits for a lease until it is silent"
            here.transport.dial(there.peer)
            down = await here.next(LinkDown)
            assert (down.reason, down.refused) == ("it is not on the run's list", True)

    limited(main)


def test_on_the_wire_who_is_refused_by_a_newer_list_asks_for_it(author: Author, tmp_path: Path) -> None:
    """It was away when the list was changed, and has nothing newer to show."""

    async def main() -> None:
        name = peer_id_in(tmp_path / "there")
        older, newer = author.text(ONE, name, revision=1), author.text(ONE, revision=2)
        async with refused(tmp_path, newer, older) as (here, _, _, theirs, spreading):
            assert spreading.has_news_for(here.peer.id), "its list may be the older one"
            spreading.show_to(here.peer.id)
            assert not spreading.has_news_for(here.peer.id) and theirs.admits(name)
            spreading.ask(here.peer.id)
            with trio.fail_after(10):
                while theirs.admits(name):
                    await trio.lowlevel.checkpoint()
            assert theirs.text == newer

    limited(main)


def test_who_has_only_what_everybody_began_with_has_no_news(
    author: Author, open_book: Callable[[str], ManifestBook]
) -> None:
    book = open_book(author.text(ONE))
    assert not Spreading(book, None).has_news_for(TWO)  # type: ignore[arg-type]
    book.offer(author.text(ONE, TWO, revision=1).encode())
    assert Spreading(book, None).has_news_for(TWO)  # type: ignore[arg-type]


def peer_id_in(home: Path) -> str:
    home.mkdir()
    taken = take_identity(home)
    taken.release()
    return taken.peer_id
