"""Names that volunteers choose for themselves, signed by their node's key.

Whoever shows a name checks it first, so it does not matter who told it on.

A name is harmless wherever it is shown, since it can hold nothing else than letters, their marks, digits, spaces and a
few points. There is nothing in it that a terminal, HTML, Markdown or JSON would obey, and nothing that nobody sees.
"""

from __future__ import annotations

import base64
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgpack

from ftnode.node.home.identity import Identity, verify
from ftnode.protocol.words.errors import UserError

ERRORS = "name"

DOMAIN: Final = "ftnode name 1"
"""So that no signature for anything else can pass for a name's."""
NAME_MAX: Final = 32
"""Letters and marks."""
POINTS: Final = " -.'"
MARKS_MAX: Final = 2
"""On one letter; more of them reach into the lines above and below."""
UNSEEN: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Letters and marks by Unicode's categories that show nothing, besides variation selectors."""
SELECTORS: Final = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
SIGNATURE_TEXT: Final = 86
"""64 bytes in base64, without padding."""
MOMENT_DIGITS_MAX: Final = 15
CHECKED_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class NameCard:
    """`text`: `MILLISECONDS/SIGNATURE`. Of two cards of a peer the newer one counts; an empty name takes it back."""

    name: str
    text: str

    @property
    def made_ms(self) -> int:
        """Unix time by the peer's clock. Of a card that was checked."""
        return int(self.text.partition("/")[0])


def check_name(name: str) -> str:
    """The name as it is shown; raises UserError (64) for one that would not be harmless."""
    found = unicodedata.normalize("NFC", name.strip())
    if not name.strip() or is_harmless(found):
        return found
    raise UserError(
        f"this name cannot be shown everywhere; use up to {NAME_MAX} letters, digits, spaces, and - . '", 64
    )


def is_harmless(name: str) -> bool:
    """Whether it is a name that `check_name` gives back."""
    if not 0 < len(name) <= NAME_MAX or name != name.strip() or "  " in name:
        return False
    marks, seen = MARKS_MAX, False
    for letter in name:
        kind = unicodedata.category(letter)
        marks = marks + 1 if kind[0] == "M" else 0
        if marks > MARKS_MAX or not (kind[0] in "LM" or kind == "Nd" or letter in POINTS) or is_unseen(letter):
            return False
        if kind[0] not in "LM":
            marks = MARKS_MAX  # a mark belongs to a letter
        seen = seen or kind[0] == "L" or kind == "Nd"
    return seen and unicodedata.is_normalized("NFC", name)


def is_unseen(letter: str) -> bool:
    return letter in UNSEEN or any(first <= ord(letter) <= last for first, last in SELECTORS)


def sign_name(identity: Identity, name: str) -> NameCard:
    """A card of now."""
    return made_card(identity.peer_id, name, int(time.time() * 1000), identity.sign)


def made_card(peer_id: str, name: str, made_ms: int, sign: Callable[[bytes], bytes]) -> NameCard:
    signature = base64.urlsafe_b64encode(sign(_signed(peer_id, name, made_ms))).decode().rstrip("=")
    return NameCard(name, f"{made_ms}/{signature}")


@lru_cache(CHECKED_MAX)
def read_name(peer_id: str, name: str, text: str) -> NameCard | None:
    """The card, if `peer_id` signed this name and it is harmless, or empty."""
    moment, _, told = text.partition("/") if len(text) <= MOMENT_DIGITS_MAX + 1 + SIGNATURE_TEXT else ("", "", "")
    if not (moment.isascii() and moment.isdecimal()) or len(moment) > MOMENT_DIGITS_MAX or len(told) != SIGNATURE_TEXT:
        return None
    if name and not is_harmless(name):
        return None
    try:
        signature = base64.b64decode(told + "==", altchars=b"-_", validate=True)
    except ValueError:
        return None
    return NameCard(name, text) if verify(peer_id, _signed(peer_id, name, int(moment)), signature) else None


def _signed(peer_id: str, name: str, made_ms: int) -> bytes:
    data: bytes = msgpack.packb([DOMAIN, peer_id, name, made_ms])
    return data
