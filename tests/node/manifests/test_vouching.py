"""Vouchers: whose count, for how many, and for how long; what they look like; how they go from peer to peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import trio

from ftnode.node.home.identity import home_directory
from ftnode.node.manifests import vouching as rules
from ftnode.node.manifests.authorship import author_key, sign
from ftnode.node.manifests.book import ManifestBook
from ftnode.node.manifests.exchange import (
    MANIFEST_PROTOCOL,
    answer,
    manifest_handler,
    read_refusal,
    read_told_vouchers,
    request_for,
)
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.manifests.spread import Spreading
from ftnode.node.manifests.voucher import DAY, Voucher, make_voucher, read_vouchers
from ftnode.node.manifests.vouching import Vouching
from ftnode.protocol.manifest.parse import Membership, parse, render
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import LinkDown
from tests.node.directory.signers import Signer
from tests.node.directory.signers import signer as made_signer
from tests.node.links.linked_node import limited, node
from tests.node.manifests.test_book import peer_id_in

RUN: Final = "0" * 32
NOW: Final = 1_800_000_000
SIGNERS: Final = [made_signer(number) for number in range(1, 40)]
ROOT, SECOND, THIRD, FOURTH = SIGNERS[:4]
RULES: Final = Membership(join="vouched", peers=(ROOT.peer.id,), vouch_depth=2, vouched_at_once=3, vouched_a_day=2)


def voucher(by: Signer, peer: Signer, made: int = NOW - 60, days: float = 30, run: str = RUN) -> Voucher:
    return make_voucher(run, by.peer.id, peer.peer.id, made, made + int(days * DAY), by.sign)


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def vouching(clock: Clock) -> Vouching:
    return Vouching(RUN, RULES, clock=clock)


def test_a_voucher_is_one_word_that_is_read_as_it_was_written() -> None:
    made = voucher(ROOT, SECOND)
    text = str(made)
    assert len(text.split()) == 1 and len(text) < 320 and all(letter.isalnum() or letter == "." for letter in text)
    assert read_vouchers(text, 1) == (made,) and made.objection(RUN, NOW) == ""
    wrapped = "\n".join(text[start : start + 72] for start in range(0, len(text), 72))
    assert read_vouchers(f"  {wrapped}\n", 1) == (made,)
    assert read_vouchers(text + str(voucher(SECOND, THIRD)), 2)[1].peer == THIRD.peer.id


@pytest.mark.parametrize("text", ["x", "ftvouch1.", "é", "ftvouch2" + "0" * 290])
def test_what_is_no_voucher_is_none(text: str) -> None:
    with pytest.raises(PeerError, match="a voucher that is none"):
        read_vouchers(text, 8)
    with pytest.raises(PeerError, match="a voucher that is none"):
        read_vouchers(str(voucher(ROOT, SECOND)) + text, 8)


def test_more_vouchers_than_somebody_may_show_are_refused() -> None:
    with pytest.raises(PeerError, match="more than 1 vouchers"):
        read_vouchers(str(voucher(ROOT, SECOND)) * 2, 1)


@pytest.mark.parametrize("place", range(9, 150, 7))
def test_a_letter_that_was_changed_is_found(place: int) -> None:
    text = str(voucher(ROOT, SECOND))
    changed = text[:place] + ("2" if text[place] != "2" else "3") + text[place + 1 :]
    try:
        (read,) = read_vouchers(changed, 1)
    except PeerError:
        return
    assert read.objection(RUN, NOW)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (voucher(ROOT, SECOND, made=NOW - 31 * DAY), "has expired"),
        (voucher(ROOT, SECOND, run="1" * 32), "is for run 1111"),
        (voucher(ROOT, SECOND, days=367), "for a time that cannot be"),
        (voucher(ROOT, SECOND, made=NOW + 3600), "later than now"),
        (voucher(ROOT, ROOT), "for who made it"),
        (voucher(SECOND, THIRD), "may not vouch"),
        (replace(voucher(ROOT, SECOND), peer=THIRD.peer.id), "is not signed by"),
        (replace(voucher(SECOND, THIRD), by=ROOT.peer.id), "is not signed by"),
    ],
)  # fmt: skip
def test_each_voucher_that_does_not_count_says_why(vouching: Vouching, made: Voucher, why: str) -> None:
    taken, refusal = vouching.take([made])
    assert why in refusal and not taken and not vouching.answers_for()


def test_who_is_vouched_for_takes_part_until_the_voucher_ends(vouching: Vouching, clock: Clock) -> None:
    assert vouching.take([voucher(ROOT, SECOND)]) == ([voucher(ROOT, SECOND)], "")
    assert vouching.answers_for() == {SECOND.peer.id: ROOT.peer.id}
    clock.now += 30 * DAY - 61
    assert vouching.chain(SECOND.peer.id)
    clock.now += 1
    assert not vouching.chain(SECOND.peer.id) and vouching.all() == ()


def test_a_chain_has_two_vouchers_at_most_and_is_taken_in_any_order(vouching: Vouching) -> None:
    chain = [voucher(THIRD, FOURTH), voucher(SECOND, THIRD), voucher(ROOT, SECOND)]
    taken, refusal = vouching.take(chain)
    assert len(taken) == 2 and f"{THIRD.peer.id} may not vouch" in refusal
    assert vouching.answers_for() == {SECOND.peer.id: ROOT.peer.id, THIRD.peer.id: ROOT.peer.id}
    assert [each.peer for each in vouching.chain(THIRD.peer.id)] == [SECOND.peer.id, THIRD.peer.id]


def test_with_a_depth_of_one_only_the_list_vouches(clock: Clock) -> None:
    vouching = Vouching(RUN, replace(RULES, vouch_depth=1), clock=clock)
    assert "may not vouch" in vouching.take([voucher(ROOT, SECOND), voucher(SECOND, THIRD)])[1]
    assert vouching.answers_for() == {SECOND.peer.id: ROOT.peer.id}


def test_who_is_off_the_list_takes_along_whom_it_vouched_for(vouching: Vouching) -> None:
    vouching.take([voucher(ROOT, SECOND), voucher(SECOND, THIRD)])
    vouching.adopt(replace(RULES, peers=(FOURTH.peer.id,)))
    assert vouching.answers_for() == {}
    vouching.adopt(RULES)
    assert len(vouching.answers_for()) == 2


def many(by: Signer, count: int, made: Callable[[int], int]) -> list[Voucher]:
    return [voucher(by, peer, made(index)) for index, peer in enumerate(SIGNERS[4 : 4 + count])]


def test_a_volunteer_that_signs_many_brings_in_as_many_as_the_limits_say(vouching: Vouching, clock: Clock) -> None:
    taken, refusal = vouching.take(many(ROOT, 30, lambda index: NOW - 1000 + index))
    assert len(taken) == 2 and "3 at a time and 2 a day count" in refusal, "two a day"
    clock.now += 10 * DAY
    assert vouching.take(many(ROOT, 30, lambda index: NOW + (index // 2) * DAY)[2:])[1]
    assert len(vouching.answers_for()) == 3, "three at a time"


def test_without_limits_it_brings_in_all(vouching: Vouching, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound that the test above looks at is this one."""
    monkeypatch.setattr(rules, "counted", lambda signed, membership, now: [*signed])
    vouching.take(many(ROOT, 30, lambda index: NOW - 1000 + index))
    assert len(vouching.answers_for()) == 30


def test_all_who_know_the_same_vouchers_admit_the_same_peers(clock: Clock) -> None:
    """In whatever order they heard of them."""
    made = many(ROOT, 9, lambda index: NOW - 5 * DAY + index * DAY // 3)
    found = []
    for order in (made, made[::-1], made[3:] + made[:3]):
        vouching = Vouching(RUN, RULES, clock=clock)
        for each in order:
            vouching.take([each])
        vouching.take(order)
        found.append(vouching.answers_for())
    assert found[0] == found[1] == found[2] and len(found[0]) == 3


def test_false_dates_do_not_free_a_place(vouching: Vouching, clock: Clock) -> None:
    """Vouchers of an hour each, dated back: a place is free a day after its end."""
    seen: set[str] = set()
    peers = iter(SIGNERS[4:])
    for _ in range(24):
        vouching.take([voucher(ROOT, next(peers), made=int(clock.now) - 2 * DAY, days=2 + 1 / 24)])
        seen |= vouching.answers_for().keys()
        clock.now += 3600
    assert len(seen) == 2, "the first two, of a day"


def test_a_later_voucher_for_the_same_peer_takes_its_own_place(vouching: Vouching) -> None:
    vouching.take([voucher(ROOT, SECOND, days=1), voucher(ROOT, THIRD)])
    assert vouching.take([voucher(ROOT, SECOND, made=NOW - 30, days=60)])[1] == ""
    assert vouching.take([voucher(ROOT, SECOND, days=1)]) == ([], ""), "an earlier one changes nothing"
    assert max(each.until for each in vouching.all()) > NOW + 59 * DAY and len(vouching.all()) == 2


def test_who_vouched_for_a_liar_is_not_believed_for_a_day(vouching: Vouching, clock: Clock) -> None:
    vouching.take([voucher(ROOT, SECOND), voucher(SECOND, THIRD)])
    assert vouching.bar(THIRD.peer.id) == (ROOT.peer.id, SECOND.peer.id)
    for by in (ROOT, SECOND):
        assert "vouched for somebody who lied" in vouching.take([voucher(by, FOURTH)])[1]
    assert len(vouching.answers_for()) == 2, "who takes part already goes on"
    clock.now += DAY
    assert vouching.take([voucher(ROOT, FOURTH)])[1] == ""


def test_after_a_false_signature_no_other_is_looked_at(vouching: Vouching, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = Voucher.objection

    def counting(self: Voucher, run_id: str, now: float) -> str:
        looked.append(self.peer)
        return real(self, run_id, now)

    monkeypatch.setattr(Voucher, "objection", counting)
    false = [replace(voucher(SECOND, peer), by=ROOT.peer.id) for peer in SIGNERS[5:15]]
    good, later = voucher(ROOT, THIRD), voucher(ROOT, FOURTH)
    taken, refusal = vouching.take([good, *false, later])
    assert taken == [good] and "is not signed by" in refusal and len(looked) == 2


def test_a_peer_that_answers_for_itself_costs_nobody(vouching: Vouching) -> None:
    assert vouching.bar(ROOT.peer.id) == () == vouching.bar(FOURTH.peer.id)


def test_vouchers_outlast_a_restart(tmp_path: Path, clock: Clock) -> None:
    Vouching(RUN, RULES, tmp_path, clock).take([voucher(ROOT, SECOND), voucher(SECOND, THIRD)])
    assert len(Vouching(RUN, RULES, tmp_path, clock).answers_for()) == 2
    (path,) = (tmp_path / "manifests").iterdir()
    path.write_text("nothing of the kind")
    assert Vouching(RUN, RULES, tmp_path, clock).answers_for() == {}


# -- at the door


def text_of(home: Path, *peers: str, depth: int = 1) -> str:
    key = author_key(home_directory(str(home)))
    try:
        tiny = PRESETS["tiny"]
        run = replace(tiny.run, author=key.peer_id)
        membership = Membership(join="vouched", peers=peers, vouch_depth=depth)
        return sign(render(replace(tiny, run=run, membership=membership)), key)
    finally:
        key.release()


def now_voucher(run_id: str, by: Signer, peer_id: str) -> Voucher:
    made = int(time.time())
    return make_voucher(run_id, by.peer.id, peer_id, made, made + DAY, by.sign)


def test_a_stranger_shows_few_and_is_told_nothing(tmp_path: Path) -> None:
    text = text_of(tmp_path / "author", ROOT.peer.id)
    book = ManifestBook(parse(text), text, tmp_path / "node", lambda manifest: None)
    run_id, told = book.manifest.run_id, list[bool]()
    book.on_vouched = told.append
    good = now_voucher(run_id, ROOT, SECOND.peer.id)
    hidden = "\n".join([str(now_voucher(run_id, THIRD, FOURTH.peer.id))] * 8 + [str(good)])
    reply = answer(book, request_for(run_id, vouchers=hidden.encode()), THIRD.peer.id)
    assert "may not vouch" in read_refusal(reply) and read_told_vouchers(reply) == b"" and not told
    assert not book.admits(SECOND.peer.id) and "no voucher for you is known" in book.refusal
    reply = answer(book, request_for(run_id, vouchers=str(good).encode()), SECOND.peer.id)
    assert read_refusal(reply) == "" and read_told_vouchers(reply) == str(good).encode()
    assert book.admits(SECOND.peer.id) and told == [True]
    assert read_refusal(answer(book, request_for(run_id, vouchers=b"\xff"), SECOND.peer.id))


def test_only_the_leader_tells_of_liars(tmp_path: Path) -> None:
    text = text_of(tmp_path / "author", ROOT.peer.id)
    book = ManifestBook(parse(text), text, tmp_path / "node", lambda manifest: None)
    run_id, liars = book.manifest.run_id, list[str]()
    book.on_liar = liars.append
    book.take_vouchers(str(now_voucher(run_id, ROOT, SECOND.peer.id)).encode(), SECOND.peer.id)
    request = request_for(run_id, liars=[SECOND.peer.id, ROOT.peer.id])
    answer(book, request, THIRD.peer.id)
    assert liars == []
    answer(book, request, THIRD.peer.id, leads=True)
    assert liars == [SECOND.peer.id]
    later = str(now_voucher(run_id, ROOT, FOURTH.peer.id)).encode()
    assert "who lied" in book.take_vouchers(later, FOURTH.peer.id)


def test_on_the_wire_who_is_refused_shows_its_voucher_and_learns_those_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        name = peer_id_in(tmp_path / "there")
        text = text_of(tmp_path / "author", ROOT.peer.id)
        book = ManifestBook(parse(text), text, tmp_path / "node", lambda manifest: None)
        theirs = ManifestBook(parse(text), text, tmp_path / "newcomer", lambda manifest: None)
        for known, peer_id in ((theirs, name), (book, SECOND.peer.id)):
            known.take_vouchers(str(now_voucher(book.manifest.run_id, ROOT, peer_id)).encode(), peer_id)
        async with (
            node(home_directory(str(tmp_path / "here")), book=book) as here,
            node(tmp_path / "there", 2) as there,
            trio.open_nursery() as nursery,
        ):
            await here.p2pd.serve(MANIFEST_PROTOCOL, manifest_handler(book))
            spreading = Spreading(theirs, there.transport, name)
            nursery.start_soon(spreading.run)
            there.transport.know(here.peer.id, await here.signed())
            there.transport.dial(here.peer)
            assert not (await there.next(LinkDown)).refused
            assert "no voucher for you is known" in there.refusals[0]
            spreading.show_to(here.peer.id)
            with trio.fail_after(10):
                while not (book.admits(name) and theirs.admits(SECOND.peer.id)):
                    await trio.lowlevel.checkpoint()
            await there.meet(here)
            nursery.cancel_scope.cancel()

    limited(main)
