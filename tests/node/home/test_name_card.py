"""Names that volunteers choose: harmless wherever they are shown, and shown only where their peer signed them."""

from __future__ import annotations

import html
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.export.model_card import plain
from ftnode.node.home.identity import peer_id_of
from ftnode.node.home.name_card import NAME_MAX, NameCard, check_name, is_harmless, made_card, read_name
from ftnode.node.watch.status_table import printable
from ftnode.protocol.words.errors import UserError

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
PEER = peer_id_of(KEY.public_key().public_bytes_raw())

GOOD = ["Ada", "Zoë", "O'Brien", "Jean-Luc P.", "木村", "דנה", "علي", "नमस्ते", "Việt", "node 7", "1", "x" * NAME_MAX]
BAD = {
    "control": "Ada\x1b[2J", "bell": "\x07", "line": "Ada\nLovelace", "html": "<script>alert(1)</script>",
    "entity": "&lt;", "markdown": "[x](http://x)", "cells": "a | b", "code": "`rm`", "stars": "*a*", "quote": 'a"b',
    "right to left": "Ada\u202eeca", "mark": "\u200fAda", "isolate": "\u2067Ada", "joiner": "A\u200dda",
    "zero width": "Ada\u200b", "separator": "a\u2028b", "surrogate": "\ud800", "private": "\ue000", "filler": "\u3164",
    "selector": "a\ufe0f", "stacked": "a" + "\u0301\u0302\u0303\u0304", "mark first": "\u0301a",
    "mark on nothing": "a \u0301",
    "long": "x" * (NAME_MAX + 1), "10 kB": "x" * 10_000, "points": "...", "two spaces": "a  b", "emoji": "\U0001f600",
    "at": "a@b", "slash": "a/b", "not normal": "e\u0301",
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_names_of_people_are_taken(name: str) -> None:
    assert check_name(f" {name} ") == name and is_harmless(name)
    card = made_card(PEER, name, 5, KEY.sign)
    assert read_name(PEER, name, card.text) == card and card.made_ms == 5
    assert printable(name) == html.escape(name, quote=False) == name
    assert json.loads(json.dumps(name)) == plain(name) == name


@pytest.mark.parametrize("name", BAD.values(), ids=BAD.keys())
def test_others_are_refused_and_not_shown(name: str) -> None:
    """Also where its own peer signed it, with another program than this one."""
    assert not is_harmless(name)
    if name != BAD["not normal"]:  # which is made so
        with pytest.raises(UserError, match="cannot be shown everywhere") as refused:
            check_name(name)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 200
    if name != BAD["surrogate"]:  # which no codec here writes
        assert read_name(PEER, name, made_card(PEER, name, 5, KEY.sign).text) is None
    else:
        assert read_name(PEER, name, made_card(PEER, "a", 5, KEY.sign).text) is None


def test_an_empty_name_takes_one_back() -> None:
    assert check_name("  ") == ""
    card = made_card(PEER, "", 6, KEY.sign)
    assert read_name(PEER, "", card.text) == card


@pytest.mark.parametrize(
    "card",
    [
        made_card(PEER, "Ada", 5, OTHER.sign),
        NameCard("Ada", made_card(PEER, "Bob", 5, KEY.sign).text),
        NameCard("Ada", made_card("other", "Ada", 5, KEY.sign).text),
        NameCard("Ada", made_card(PEER, "Ada", 5, KEY.sign).text.replace("5/", "6/")),
        NameCard("Ada", made_card(PEER, "Ada", 5, KEY.sign).text[2:]),
        *(NameCard("Ada", text) for text in ("", "/", "5/", "5/" + "é" * 86, "²/" + "A" * 86, "9" * 10_000)),
        NameCard("Ada", "5/" + "A" * 86),
    ],
)  # fmt: skip
def test_a_name_that_its_peer_did_not_sign_is_none(card: NameCard) -> None:
    assert read_name(PEER, card.name, card.text) is None


@pytest.mark.parametrize("peer", ["", "x", "é" * 40, "1" * 10_000])
def test_nobody_elses_id(peer: str) -> None:
    assert read_name(peer, "Ada", made_card(PEER, "Ada", 5, KEY.sign).text) is None
