"""Every error has a code, a cause and a next step, and docs/reference/errors.md lists them all."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ftnode.node.home.identity import home_directory
from ftnode.protocol.words.errors import UserError
from tests import error_texts
from tests.node.cli.cli_runner import Seen, runner
from tests.syntax_trees import ROOT

PAGE = ROOT / "docs" / "reference" / "errors.md"
HEAD = "| code | what it says | what to do |"


@cache
def texts_of_the_tree() -> list[error_texts.ErrorText]:
    return error_texts.error_texts()


@pytest.fixture
def ftnode(capsys: pytest.CaptureFixture[str]) -> Callable[..., Seen]:
    return runner(capsys)


def test_the_page_lists_every_error_with_what_to_do() -> None:
    page = PAGE.read_text(encoding="utf-8")
    texts = texts_of_the_tree()
    assert len(texts) > 100
    wanted = error_texts.table(texts, error_texts.rows_of(page))
    before = page.partition(HEAD)[0]
    if os.environ.get("FTNODE_UPDATE"):
        PAGE.write_text(f"{before}{wanted}\n", encoding="utf-8")
    else:
        assert page == f"{before}{wanted}\n", "the sources say something else: FTNODE_UPDATE=1, then fill in what to do"
    assert [line for line in wanted.splitlines() if re.search(r"\|\s*\|$", line)] == [], "no next step"


def test_every_text_says_something_of_its_own() -> None:
    """Else its row on the page would be one of dots, and nobody finds what was shown."""
    texts = texts_of_the_tree()
    assert [text for text in texts if not any(letter.isalpha() for letter in text.text)] == []
    source = 'def f(where, text):\n    raise UserError(f"{where}: {text}", 78)'
    (found,) = error_texts.texts_of("x", ast.parse(source), {})
    assert found.cause == "…: …"


def test_every_exit_code_is_explained() -> None:
    head = PAGE.read_text(encoding="utf-8").partition(HEAD)[0]
    explained = {int(number) for number in re.findall(r"(?m)^\| (\d+) \|", head)}
    used = {text.exit_code for text in texts_of_the_tree()} - {0}
    assert used <= explained and {0, 1, 130, 141} <= explained


def test_texts_are_found_however_they_are_put_together() -> None:
    source = """
DISK = 74
class NotBegun(UserError): ...
def f(path):
    cause = f"no peer within {path} s"
    raise UserError(f"{cause}; check " "the address", DISK)
def g():
    raise NotBegun("nobody knows it; wait", exit_code=UNAVAILABLE)
def h(error):
    return UserError(str(error), 65), UserError("typed wrongly; write x")
"""
    found = set(error_texts.texts_of("x", ast.parse(source), {"UNAVAILABLE": 69}))
    assert {(text.code, text.cause, text.next_step) for text in found} == {
        ("E74-x", "no peer within … s", "check the address"),
        ("E69-x", "nobody knows it", "wait"),
        ("E64-x", "typed wrongly", "write x"),
    }


def test_an_error_that_the_page_does_not_know_is_found() -> None:
    text = error_texts.ErrorText(69, "p2pd", "something new")
    assert error_texts.table([text], {}).endswith("| `E69-p2pd` | something new |  |")
    assert error_texts.rows_of(error_texts.table([text], {("E69-p2pd", "something new"): "do this"})) == {
        ("E69-p2pd", "something new"): "do this"
    }


def test_a_code_is_that_of_the_page() -> None:
    assert UserError("x", 69).code == "E69-test_errors"


JSON = (
    "run show none.toml", "status", "peers", "credits", "leave", "resume --peer x", "health",
    "snapshots verify 1/1", "snapshots save out", "export none.toml out", "generate none x", "replay none",
    "lab audit none", "run vouch none.toml x",
)  # fmt: skip


@pytest.mark.parametrize("words", JSON)
def test_an_error_leaves_the_output_to_json(ftnode: Callable[..., Seen], tmp_path: Path, words: str) -> None:
    """A script that reads JSON gets nothing else: not half of a table, and not the error."""
    seen = ftnode(
        *words.replace("none", str(tmp_path / "none")).split(), "--json", "--home", home_directory(str(tmp_path))
    )
    assert seen.code >= 64
    assert json.loads(seen.out) if seen.out else seen.refused(seen.code, " [E")


def test_the_line_on_stderr_has_the_code(ftnode: Callable[..., Seen], tmp_path: Path) -> None:
    seen = ftnode("run", "show", tmp_path / "none.toml")
    assert seen.err.endswith(" [E66-cli_options]\n")
    assert ftnode("run", "shwo").err.endswith(" [E64-usage]\n")
    assert "`E66-cli_options` | there is no manifest …" in PAGE.read_text(encoding="utf-8")
