"""What anyone on the Internet may be told of a run: the fields that stand here, each in its own shape, and no others.

A field that a status gets later is not told until it stands here. Sentences of peers are told as far as they are plain
words and numbers: at the first word that could be an address, a name of a host or a path, they end. So whoever holds
stages cannot put a link onto somebody's page, and a reason that quotes this machine's own errors names no folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Shape = Callable[[Any], Any]

PEER: Final = re.compile(r"[1-9A-HJ-NP-Za-km-z]{0,64}")
"""A PeerId, in base58."""
IDENTITY: Final = re.compile(r"[A-Za-z0-9]{0,64}")
NAME: Final = re.compile(r"[A-Za-z0-9._-]{0,64}")
"""A manifest allows no other name of a run."""
NO_HOST: Final = re.compile(r"[^.]*(\.\d{1,3}){0,2}")
STATE: Final = re.compile(r"[a-z]{0,16}")
WORD: Final = re.compile(
    r"""[("'\[]*(?:[A-Za-z0-9]{1,64}(?:['-][A-Za-z0-9]{1,32}){0,4}|-?\d{1,16}(?:,\d{3}){0,6}(?:\.\d{1,16})?%?|->?|%|/)?"""
    r"""[])"',.;:]*"""
)
"""With signs of punctuation around it. A point stands in numbers alone, and there once."""
SENTENCE_MAX: Final = 300
CUT: Final = "…"
LISTED_MAX: Final = 1024
"""Rows of one kind; a status has fewer."""


def number(value: Any) -> int | float | None:
    """None for what is none, nor one that JSON has."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def text(pattern: re.Pattern[str]) -> Shape:
    """Nothing at all where it is another text."""
    return lambda value: value if isinstance(value, str) and pattern.fullmatch(value) else ""


def sentence(value: Any) -> str:
    """As far as it is plain words."""
    told: list[str] = []
    for word in str(value)[:SENTENCE_MAX].split():
        if not WORD.fullmatch(word):
            return " ".join([*told, CUT])
        told.append(word)
    return " ".join(told)


def as_it_is(value: Any) -> str:
    """What was checked before it came here: the author's words, and names of volunteers, both signed."""
    return str(value)


def every(shape: Shape) -> Shape:
    return lambda values: [shape(value) for value in values[:LISTED_MAX]]


def fields(**shapes: Shape) -> Shape:
    """Those of a mapping that are named, and no others."""
    return lambda found: {name: shape(found[name]) for name, shape in shapes.items()}


def run_name(value: Any) -> str:
    """With points in it only as numbers of versions have them."""
    found: str = text(NAME)(value)
    return found if NO_HOST.fullmatch(found) else found.replace(".", "_")


peer, identity, state = text(PEER), text(IDENTITY), text(STATE)
STATUS: Final = fields(
    run=identity, name=run_name, step=number, steps=number, state=state, waiting=sentence, view=number, leader=peer,
    loss=number, validation=number, tokens_per_second=number, eta_seconds=number, limiting_peer=peer, limited_by=state,
    announcement=as_it_is, alarms=every(sentence), standbys=every(peer), credits_step=number,
    speaker=fields(peer=peer),
    stages=every(fields(
        stage=number, peer=peer, state=state, epoch=number, step=number, accumulated=number, queue=number, age=number,
    )),
    peers=every(fields(peer=peer, computed=number, sent=number, waited=number, line_full=number, line_up=number)),
    recoveries=every(fields(
        stage=number, step=number, rung=state, epoch=number, lost=peer, newcomer=peer, reason=sentence, seconds=number,
        bytes_fetched=number, validation_before=number, validation_after=number,
    )),
    credits=every(fields(
        peer=peer, name=as_it_is, visits=number, seconds=number, rebuilt=number, relayed_bytes=number,
    )),
)  # fmt: skip
LOOK: Final = fields(
    format=number, generation=identity, source=state, age=number, silent=bool, trouble=sentence,
    status=lambda status: None if status is None else STATUS(status),
)  # fmt: skip
ROWS: Final[Mapping[str, tuple[Shape, ...]]] = {
    "commits": (number, number, number, number, bool),
    "validations": (number, number),
    "notes": (number, number, peer, state, sentence, sentence),
}
"""Of each log, by column."""


def row(log: str, values: tuple[Any, ...]) -> list[Any]:
    """One of a log, as anyone may see it."""
    return [shape(value) for shape, value in zip(ROWS[log], values, strict=True)]
