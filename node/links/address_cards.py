"""Address cards: where a peer can be dialled, signed by the peer itself.

A peer's addresses travel as a list of multiaddrs whose last item is the card, `/card/MILLISECONDS/SIGNATURE`: when the
list was made, and the peer's signature over its PeerId, that moment and the addresses before it. Whoever passes a list
on passes the card on with it. What has no card, or one that does not fit, says nothing about anybody.

The core does not know cards: to it a list of addresses is a list of words.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgpack

from ftnode.node.home.identity import Sign, verify
from ftnode.node.links.addresses import ADDRESS_BYTES_MAX
from ftnode.node.links.newest import newest

DOMAIN: Final = "ftnode address card 1"
"""So that no signature for anything else can pass for a card's."""
PREFIX: Final = "/card/"
CARDS_MAX: Final = 4096
"""Peers whose card is remembered; the longest unmentioned is forgotten first."""
REFUSED_MAX: Final = 4096
"""Lists whose card did not fit, so that saying them again costs nobody a signature."""
CARRIED_MAX: Final = 15
"""Addresses on one card; with the card, as many as a record in the directory may have."""
MOMENT_DIGITS_MAX: Final = 15
SIGNATURE_TEXT: Final = 86
"""64 bytes in base64, without padding."""


@dataclass(frozen=True, slots=True)
class AddressCard:
    """`made_ms`: Unix time by the peer's clock. The newest card counts."""

    peer_id: str
    addresses: tuple[str, ...]
    made_ms: int


def with_card(peer_id: str, addresses: Sequence[str], made_ms: int, sign: Sign) -> tuple[str, ...]:
    """The addresses and their card. Without addresses there is none."""
    own = bare(addresses)
    if not own:
        return ()
    signature = base64.urlsafe_b64encode(sign(_signed(peer_id, own, made_ms))).decode().rstrip("=")
    return (*own, f"{PREFIX}{made_ms}/{signature}")


def card_signer(
    peer_id: str, sign: Sign, wall_clock: Callable[[], float] = time.time
) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Puts a card of now behind the first addresses of ours, as many as a record in the directory has room for."""
    return lambda addresses: with_card(peer_id, addresses[:CARRIED_MAX], int(wall_clock() * 1000), sign)


def bare(addresses: Sequence[str]) -> tuple[str, ...]:
    """The addresses alone, for people, or to dial what a card was checked for."""
    return tuple(address for address in addresses if not address.startswith(PREFIX))


def read_card(peer_id: str, addresses: Sequence[str]) -> AddressCard | None:
    """The card at the end of a list; None where there is none that `peer_id` signed for this list."""
    if not 2 <= len(addresses) <= CARRIED_MAX + 1 or not addresses[-1].startswith(PREFIX):
        return None
    if any(len(address) > ADDRESS_BYTES_MAX for address in addresses):
        return None
    moment, _, text = addresses[-1].removeprefix(PREFIX).partition("/")
    if not (moment.isascii() and moment.isdecimal() and len(moment) <= MOMENT_DIGITS_MAX):
        return None
    try:
        signature = base64.b64decode(text + "==", altchars=b"-_", validate=True) if len(text) == SIGNATURE_TEXT else b""
    except ValueError:
        return None
    card = AddressCard(peer_id, tuple(addresses[:-1]), int(moment))
    return card if verify(peer_id, _signed(peer_id, card.addresses, card.made_ms), signature) else None


class CardBook:
    """The newest card of each peer. `check`: how a card is read; each list is checked once, as long as it is known."""

    def __init__(self, check: Callable[[str, Sequence[str]], AddressCard | None] = read_card) -> None:
        self._check = check
        self._cards: dict[str, tuple[AddressCard, tuple[str, ...]]] = {}
        """With the list as it was said, card and all."""
        self._refused: dict[bytes, None] = {}
        """Digests of lists."""

    def learn(self, peer_id: str, addresses: Sequence[str]) -> bool:
        """Whether this list has a card of the peer's, no older than the one that is known."""
        said = tuple(addresses)
        before = self._cards.get(peer_id)
        if before is not None and before[1] == said:
            newest(self._cards, peer_id, before, CARDS_MAX)
            return True
        digest = hashlib.blake2b(_packed(peer_id, said), digest_size=16).digest()
        if digest in self._refused:
            return False
        card = self._check(peer_id, said)
        if card is None:
            newest(self._refused, digest, None, REFUSED_MAX)
            return False
        if before is not None and card.made_ms < before[0].made_ms:
            return False
        newest(self._cards, peer_id, (card, said), CARDS_MAX)
        return True

    def addresses(self, peer_id: str) -> tuple[str, ...]:
        """Those that the peer signed last."""
        known = self._cards.get(peer_id)
        return known[0].addresses if known is not None else ()


def _signed(peer_id: str, addresses: Sequence[str], made_ms: int) -> bytes:
    return _packed(DOMAIN, peer_id, made_ms, list(addresses))


def _packed(*parts: str | int | Sequence[str]) -> bytes:
    data: bytes = msgpack.packb(parts)
    return data
