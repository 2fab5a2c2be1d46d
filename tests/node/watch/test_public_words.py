"""Nothing is told to anyone but what stands in the list, whatever a status says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from ftnode.node.watch.dashboard_feed import Decision, Feed
from ftnode.node.watch.history import CommitRow, ValidationRow
from ftnode.node.watch.public_page import PublicPage
from ftnode.node.watch.public_words import CUT, SENTENCE_MAX, STATUS, run_name, sentence
from ftnode.node.watch.status import SwarmStatus

SECRETS = (
    "/ip4/198.51.100.7/tcp/31337/p2p/12D3KooWSecret", "no word of x at 198.51.100.7:31337", "2001:db8::17",
    "/srv/secret/.local/share/ftnode", "cannot read /srv/secret/x", "peer.secret.example", "~/secret", "C:\\secret",
    "secret@example.org", "<b>secret</b>",
)  # fmt: skip
TRACES = re.compile(r"secret|198\.51|2001:db8|31337|[/\\@<>~]", re.IGNORECASE)
SIGNED = {"announcement", "name"}
"""Texts that are checked elsewhere: the author's words, and names that volunteers gave themselves."""


def planted(kind: Any, secret: str, name: str = "") -> Any:
    """A value of this type in which every text is the secret."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{one.name: planted(hints[one.name], secret, one.name) for one in fields(kind)})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return (planted(get_args(kind)[0], secret, name),) * 2
    if get_args(kind):
        return planted(get_args(kind)[0], secret, name)
    if kind is str:
        return "" if name in SIGNED else secret
    return {int: 3, float: 2.5, bool: True}[kind]


def texts(told: Any) -> Iterator[str]:
    if isinstance(told, dict):
        for name, value in told.items():
            yield name
            yield from texts(value)
    elif isinstance(told, list):
        for value in told:
            yield from texts(value)
    elif isinstance(told, str):
        yield told


def served(secret: str) -> list[dict[str, Any]]:
    """Both documents, where everything that peers say is the secret."""
    feed = Feed("live")
    status = planted(SwarmStatus, secret)
    feed.tell_status(status)
    feed.tell_commits([CommitRow(3, 2.0, 8, 0.5, False)], status.run, status.lineage)
    feed.tell_validations([ValidationRow(3, 2.0)])
    feed.tell_decisions([Decision(1.0, 3, secret, secret, secret), Decision(2.0, 3, "p", "lost", f"it is {secret}")])
    feed.tell_trouble(f"nobody answers at {secret}")
    page = PublicPage(feed, lambda: None)
    return [json.loads(document.body) for document in (page.news(), page.past())]


@pytest.mark.parametrize("secret", SECRETS)
def test_no_address_and_no_path_is_told(secret: str) -> None:
    assert [text for told in served(secret) for text in texts(told) if TRACES.search(text)] == []


def test_what_is_planted_would_be_found() -> None:
    """The walk sees what a page that is not public is told."""
    feed = Feed("live")
    feed.tell_status(planted(SwarmStatus, SECRETS[0]))
    told = json.loads(json.dumps(feed.look("", 0, 0, 0)))
    assert sum(bool(TRACES.search(text)) for text in texts(told)) > 20


def test_a_status_that_gets_more_fields_tells_no_more() -> None:
    feed = Feed("live")
    feed.tell_status(planted(SwarmStatus, "x"))
    status = feed.look("", 0, 0, 0)["status"]
    told = STATUS(status | {"secret": "x", "stages": [row | {"secret": "x"} for row in status["stages"]]})
    assert "secret" not in {*texts(told)} and not {"members", "undigested", "trouble", "clock"} & {*told}
    assert {*told["peers"][0]} == {"peer", "computed", "sent", "waited", "line_full", "line_up"}


def test_every_field_that_is_told_is_one_of_a_status() -> None:
    """So that a name that is mistyped, or goes, is noticed."""
    assert all(one.default is not MISSING for one in fields(SwarmStatus) if one.name != "speaker")
    assert {*STATUS(planted_mapping())} <= {one.name for one in fields(SwarmStatus)}


def planted_mapping() -> dict[str, Any]:
    feed = Feed("live")
    feed.tell_status(planted(SwarmStatus, "x"))
    status: dict[str, Any] = feed.look("", 0, 0, 0)["status"]
    return status


@pytest.mark.parametrize(
    "text",
    [
        "stage 1 was lost with 7hPz2c at step 96; Qm4t1a rebuilt it in 3.2 s (its last holder's gone)",
        "no certificate and no other founder: founds the run with stages [0, 1]",
        "validation was 2.011, 2.064 after, and is 2.1 now: 1,234 steps, 85%", "- -> -",
    ],
)  # fmt: skip
def test_what_nodes_say_comes_through_whole(text: str) -> None:
    assert sentence(text) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("compute is lost: /srv/x/a b", f"compute is lost: {CUT}"), ("at 1.2.3.4", f"at {CUT}"),
        ("see evil.example now", f"see {CUT}"), ("x [fe80::1]:80 y", f"x {CUT}"), ("host:8080", CUT),
        ("a\nb", "a b"), ("Ünicode", CUT), ("", ""), ("1.2.3", CUT), ("a..b", CUT),
    ],
)  # fmt: skip
def test_other_words_end_it(text: str, told: str) -> None:
    assert sentence(text) == told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tiny-1.2", "tiny-1.2"), ("v1.2.3", "v1.2.3"), ("evil.example", "evil_example"), ("1.2.3.4", "1_2_3_4"),
        ("<b>", ""), ("x" * 65, ""),
    ],
)  # fmt: skip
def test_a_run_is_named_as_no_host_is(name: str, told: str) -> None:
    assert run_name(name) == told


def test_a_sentence_is_short() -> None:
    assert len(sentence("word " * 1000)) <= SENTENCE_MAX
    assert sentence("x" * 10_000) == CUT
