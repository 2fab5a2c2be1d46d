"""Texts that somebody shows as manifests: which are looked at further, and that the look takes no time."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.node.manifests.book import MANIFEST_BYTES_MAX, ManifestBook
from ftnode.node.manifests.exchange import answer, read_refusal, request_for
from ftnode.node.manifests.presets import PRESETS
from ftnode.protocol.manifest.parse import Membership, parse, render
from ftnode.protocol.manifest.plain_text import STRUCTURE_MAX, require_plain
from ftnode.protocol.manifest.sections import LISTED_MAX
from ftnode.protocol.words.errors import UserError
from tests.node.directory.signers import signer

TINY = PRESETS["tiny"]
LOOK_SECONDS = 5.0
"""Of this process. It takes a twentieth of a second; what grows with the square of the length takes minutes."""


@pytest.mark.parametrize("separator", [", ", ",\n    # somebody. who. has. a. machine\n    "])
def test_the_largest_manifest_there_may_be_passes(separator: str) -> None:
    peers = tuple(signer(number).peer.id for number in range(1, 9)) * (LISTED_MAX // 8)
    text = render(replace(TINY, membership=Membership(join="listed", peers=peers)))
    text = text.replace('", "', f'"{separator}"')
    assert len(text) < MANIFEST_BYTES_MAX and parse(text).membership.peers == peers
    require_plain(text)


@pytest.mark.parametrize(
    "text",
    [
        'message = "see a.b.c.d.e.f, or \\" a.b.c.d.e.f"',
        "message = 'a.b.c.d.e.f' # a.b.c.d.e.f \" '",
        'message = """\n" a.b.c.d.e.f = 1\n""""" # "',
        "message = '''\n' a.b.c.d.e.f = 1\n''''' # '",
        "betas = [0.9, 0.95, 1.5, 2.5, 3.5, 4.5]\nat = 1979-05-27T07:32:00.999999",
        'run.name."x".y = 1',
        "",
    ],
)
def test_dots_elsewhere_than_in_keys_do_not_matter(text: str) -> None:
    require_plain(text)


@pytest.mark.parametrize(
    "text",
    [
        "a.b.c.d.e = 1",
        "  [ a . b\t.  c.d.e ]",
        "[[a.b.c.d.e]]",
        '"a".\'b\'.c."".e = 1',
        "x = {y = 1, a.b.c.d.e = 1}",
        'x = {y = """a"""", a.b.c.d.e = "b"}',
        "x = {y = '''a''''', a.b.c.d.e = 'b'}",
        'x = {y = "\\"", a.b.c.d.e = "b"}',
        "x = {y = '\\', a.b.c.d.e = 'b'}",
        "x = 1 # \"\na.b.c.d.e = '\"'",
        "ключ-1.b.c.d.e = 1",
    ],
)
def test_a_key_of_many_dots_is_found_wherever_it_stands(text: str) -> None:
    with pytest.raises(ValueError, match="dots"):
        require_plain(text)


def test_many_keys_are_no_manifest() -> None:
    text = "".join(f"a{number}=1\n" for number in range(STRUCTURE_MAX // 7))
    with pytest.raises(ValueError, match="letters"):
        require_plain(text)


@pytest.mark.parametrize(
    "piece", ['\\"', '"', "'", '"""', "'''", '"""a', "a", " ", "a ", "a.", ".", "#", "\n", '""""', '"\\', "a\t", "'a"]
)
def test_the_look_takes_no_longer_for_any_text_of_that_length(piece: str) -> None:
    text, began = piece * (MANIFEST_BYTES_MAX // len(piece)), time.process_time()
    with suppress(ValueError):
        require_plain(text)
    assert time.process_time() - began < LOOK_SECONDS


def test_who_shows_such_a_text_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    book = ManifestBook(TINY, render(TINY), tmp_path, lambda newer: pytest.fail("a manifest that nobody signed"))
    shown = "a." * 4000 + "a = 1"
    assert "dots" in read_refusal(answer(book, request_for(TINY.run_id, shown)))


def test_a_file_like_that_is_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"first\.toml is not TOML: a key has more than 3 dots"):
        parse("a." * 4000 + "a = 1", "first.toml")
