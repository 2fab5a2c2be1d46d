"""README and docs/: links lead somewhere, commands exist, README stays short; and each check finds what it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs import page_checks as checks
from tests.docs.markdown_page import Page, read_page, slug

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
SHELVES = ("how-to", "tutorial", "explanation", "reference", "decisions")
WRAPPED = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/index.md", "docs/glossary.md")
PAGES = [ROOT / name for name in TOP] + sorted((ROOT / "docs").rglob("*.md"))
BLOCKS = [path for path in PAGES if path.name != "CHANGELOG.md"]

Check = Callable[[Page], Iterator[str]]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_wrapped(path: Path) -> bool:
    return name_of(path) in WRAPPED or path.parent.name in SHELVES


def links(page: Page) -> Iterator[str]:
    return checks.broken_links(page, ROOT)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_and_anchors_lead_somewhere(path: Path) -> None:
    assert list(links(read_page(path))) == []


@pytest.mark.parametrize("path", BLOCKS, ids=name_of)
@pytest.mark.parametrize("check", [checks.unclear_blocks, checks.wrong_commands], ids=lambda check: check.__name__)
def test_blocks_say_what_they_are_and_their_commands_exist(check: Check, path: Path) -> None:
    assert list(check(read_page(path))) == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_no_merge_is_left_unfinished(path: Path) -> None:
    assert list(checks.merge_marks(read_page(path))) == []


def test_the_readme_is_short() -> None:
    assert list(checks.too_many_words(read_page(ROOT / "README.md"))) == []


@pytest.mark.parametrize("path", [path for path in PAGES if is_wrapped(path)], ids=name_of)
def test_lines_are_wrapped(path: Path) -> None:
    assert list(checks.long_lines(read_page(path))) == []


def test_every_page_is_in_the_index() -> None:
    """Decisions and results have a page that lists them."""
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / target.partition("#")[0]).resolve() for _, target in read_page(index).links}
    pages = {path for path in PAGES if path.is_relative_to(ROOT / "docs") and path.parent.name != "decisions"}
    assert pages - listed - {index} == set()


@pytest.mark.parametrize(
    ("check", "text", "finding"),
    [
        (links, "see [it](none.md)", "there is no none.md"),
        (links, "see [the\nother](page.md#nowhere)", "no heading #nowhere"),
        (links, "![a picture](none.png)", "there is no none.png"),
        (links, "[`code`](none.md)", "there is no none.md"),
        (links, "[up](../../../outside.md)", "there is no"),
        (links, "# One\n\n[two](#two)", "no heading #two"),
        (checks.unclear_blocks, "```\nls\n```", "say what the block is"),
        (checks.unclear_blocks, "<!-- skip it -->\n```sh\nls\n```", "a note of blocks"),
        (checks.unclear_blocks, "<!-- not run: -->\n```sh\nls\n```", "a note of blocks"),
        (checks.unclear_blocks, "<!-- run: some day -->\n\n    ls", "a note of blocks"),
        (checks.wrong_commands, "```sh\nftnode status --pear x\n```", "takes no --pear"),
        (checks.wrong_commands, "<!-- not run: why -->\n```sh\nsudo ftnode leave --nwo\n```", "takes no --nwo"),
        (checks.wrong_commands, "    ftnode run shwo x", "no command: ftnode run shwo"),
        (checks.wrong_commands, "```sh\nLINK=$(ftnode run show x --pear y)\n```", "takes no --pear"),
        (checks.wrong_commands, "```sh\n/opt/ftnode/bin/ftnode jion x & ls\n```", "no command: ftnode jion x"),
        (checks.wrong_commands, "```sh\nftnode join x \\\n    --no-such 3\n```", "takes no --no-such"),
        (checks.too_many_words, "word " * 901, "901 words"),
        (checks.long_lines, "x" * 121, "121 characters"),
        (checks.merge_marks, "text\n<<<<<<< HEAD\ntext", "page.md:2: what a merge left"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(check: Check, text: str, finding: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    page = read_page(tmp_path / "page.md")
    found = list(checks.broken_links(page, tmp_path) if check is links else check(page))
    assert len(found) == 1 and finding in found[0]


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (links, "# A `b c`: d, e\n\n[x](#a-b-c-d-e) [y](https://example.org/none) `[z](none.md)`"),
        (links, "# Twice\n\n# Twice\n\n[x](page.md#twice-1) [`y`](page.md)"),
        (links, "```text\n[x](none.md)\n```"),
        (checks.unclear_blocks, "- a list\n\n    with text that is no block"),
        (checks.unclear_blocks, '<!-- run: with a swarm, until "step" -->\n```sh\nls\n```'),
        (checks.wrong_commands, "```sh\nftnode join x --up=3 --listen none > ftnode.log 2>&1   # ftnode jion\n```"),
        (checks.wrong_commands, "```text\nftnode jion\n```"),
        (checks.long_lines, "| " + "x" * 121 + " |"),
    ],
)  # fmt: skip
def test_what_is_right_is_not_found(check: Check, text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    page = read_page(tmp_path / "page.md")
    assert list(checks.broken_links(page, tmp_path) if check is links else check(page)) == []


def test_a_heading_becomes_an_anchor_as_on_github() -> None:
    assert slug("`ftnode run init`") == "ftnode-run-init"
    assert slug("What it does *not* do: 3, 4") == "what-it-does-not-do-3-4"
    assert slug("See [the page](x.md)") == "see-the-page"
