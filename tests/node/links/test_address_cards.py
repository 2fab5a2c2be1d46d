"""A list of addresses counts when the peer that it is about has signed it, and the newest one counts."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import peer_id_of
from ftnode.node.links import address_cards
from ftnode.node.links.address_cards import (
    CARRIED_MAX,
    AddressCard,
    CardBook,
    bare,
    card_signer,
    read_card,
    with_card,
)
from ftnode.node.links.addresses import is_dialable
from ftnode.protocol.wire.admission import usable_addresses

HERE = ("/ip4/192.0.2.1/tcp/31337", "/ip6/2001:db8::1/tcp/31337")
THERE = ("/ip4/192.0.2.2/tcp/31337",)


def somebody() -> tuple[str, Ed25519PrivateKey]:
    key = Ed25519PrivateKey.generate()
    return peer_id_of(key.public_key().public_bytes_raw()), key


def test_a_card_travels_as_the_last_address() -> None:
    peer_id, key = somebody()
    said = with_card(peer_id, HERE, 17, key.sign)
    assert said[:-1] == bare(said) == HERE
    assert read_card(peer_id, said) == AddressCard(peer_id, HERE, 17)
    assert not is_dialable(said[-1]), "nobody takes the card for an address"
    assert usable_addresses(said) == said, "the core keeps it with them"
    assert with_card(peer_id, (), 17, key.sign) == ()
    assert with_card(peer_id, said, 17, key.sign) == said, "one card"


def test_a_signer_stays_within_what_a_record_holds() -> None:
    peer_id, key = somebody()
    many = tuple(f"/ip4/192.0.2.1/tcp/{port}" for port in range(1024, 1024 + 40))
    said = card_signer(peer_id, key.sign, lambda: 12.5)(many)
    assert len(said) == CARRIED_MAX + 1
    assert read_card(peer_id, said) == AddressCard(peer_id, many[:CARRIED_MAX], 12_500)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: said[:-1],
        lambda said: said[-1:],
        lambda said: (),
        lambda said: (*THERE, *said[1:]),
        lambda said: (*THERE, *said),
        lambda said: (*said, *THERE),
        lambda said: said[1:],
        lambda said: (said[1], said[0], said[2]),
        lambda said: (*said[:-1], said[-1].replace("/card/17/", "/card/18/")),
        lambda said: (*said[:-1], said[-1].replace("/card/17/", "/card/-17/")),
        lambda said: (*said[:-1], said[-1].replace("/card/17/", "/card/" + "9" * 400 + "/")),
        lambda said: (*said[:-1], said[-1].replace("/card/17/", "/card/²/")),
        lambda said: (*said[:-1], said[-1][:-1]),
        lambda said: (*said[:-1], said[-1][:-1] + "é"),
        lambda said: (*said[:-1], "/card/17/" + "A" * 86),
        lambda said: (*said[:-1], "/card/"),
    ],
)
def test_what_was_not_signed_like_this_has_no_card(spoil: object) -> None:
    peer_id, key = somebody()
    assert read_card(peer_id, spoil(with_card(peer_id, HERE, 17, key.sign))) is None  # type: ignore[operator]


def test_nobody_signs_for_somebody_else() -> None:
    (peer_id, _), (liar, key) = somebody(), somebody()
    assert read_card(peer_id, with_card(peer_id, HERE, 17, key.sign)) is None
    assert read_card(peer_id, with_card(liar, HERE, 17, key.sign)) is None
    assert read_card("nonsense", with_card("nonsense", HERE, 17, key.sign)) is None


def test_a_signature_for_another_purpose_is_none_for_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    peer_id, key = somebody()
    said = with_card(peer_id, HERE, 17, key.sign)
    monkeypatch.setattr(address_cards, "DOMAIN", "something else")
    assert read_card(peer_id, said) is None


def test_the_newest_card_counts_and_each_list_is_checked_once() -> None:
    peer_id, key = somebody()
    checked: list[int] = []

    def check(peer_id: str, addresses: object) -> AddressCard | None:
        checked.append(1)
        return read_card(peer_id, addresses)  # type: ignore[arg-type]

    book = CardBook(check)
    old, new = with_card(peer_id, HERE, 17, key.sign), with_card(peer_id, THERE, 18, key.sign)
    assert book.addresses(peer_id) == ()
    assert book.learn(peer_id, old) and book.learn(peer_id, list(old))
    assert (book.addresses(peer_id), len(checked)) == (HERE, 1)
    assert book.learn(peer_id, new)
    assert not book.learn(peer_id, old), "somebody repeats what was"
    assert book.addresses(peer_id) == THERE
    checked.clear()
    for _ in range(3):
        assert not book.learn(peer_id, HERE)
    assert (book.addresses(peer_id), len(checked)) == (THERE, 1)


def test_the_book_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_cards, "CARDS_MAX", 2)
    monkeypatch.setattr(address_cards, "REFUSED_MAX", 2)
    book, everybody = CardBook(), [somebody() for _ in range(3)]
    for peer_id, key in everybody:
        assert book.learn(peer_id, with_card(peer_id, HERE, 1, key.sign))
        assert not book.learn(peer_id, HERE)
    assert [bool(book.addresses(peer_id)) for peer_id, _ in everybody] == [False, True, True]
    assert len(book._refused) == 2
