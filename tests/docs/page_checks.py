"""What must hold for every page: links lead somewhere, commands exist, and each block says how a test runs it.

Each check takes a page and gives what is wrong with it, a line for each finding.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import click

from ftnode.node.cli.main import cli
from tests.docs.markdown_page import Block, Page, read_page

ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")
README_WORDS_MAX = 900
LINE_MAX = 120
NOTE = re.compile(r"not run: \S.*|run: (with a swarm|with processes)(, until \"[^\"]+\")?|run: until \"[^\"]+\"")
TEXT_LANGUAGES = ("text", "toml", "json", "yaml", "python", "ini", "html", "diff")
ENDS_A_COMMAND = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "(", ")", ">&"})
BEFORE_A_COMMAND = ENDS_A_COMMAND | {"$(", "sudo", "do", "then", "until", "while"}


def broken_links(page: Page, root: Path) -> Iterator[str]:
    for line, target in page.links:
        if ELSEWHERE.match(target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.path.parent / unquote(name)).resolve() if name else page.path
        if not path.is_relative_to(root.resolve()) or not path.exists():
            yield f"{page.path.name}:{line}: there is no {target}"
        elif anchor and (path.suffix != ".md" or anchor not in _anchors(path)):
            yield f"{page.path.name}:{line}: {path.name} has no heading #{anchor}"


@cache
def _anchors(path: Path) -> set[str]:
    return read_page(path).anchors


def unclear_blocks(page: Page) -> Iterator[str]:
    """A block whose language is not said, or a shell block with a note that is none of ours."""
    for block in page.blocks:
        if block.language not in (*TEXT_LANGUAGES, "sh"):
            yield f"{page.path.name}:{block.line}: say what the block is: sh, {', '.join(TEXT_LANGUAGES)}"
        elif block.language == "sh" and block.note and not NOTE.fullmatch(block.note):
            yield f"{page.path.name}:{block.line}: a note of blocks is 'not run: WHY' or 'run: …', not {block.note!r}"


def wrong_commands(page: Page) -> Iterator[str]:
    """Commands and options in shell blocks that ftnode does not have, also in blocks that no test runs."""
    for block in page.shell:
        for words in ftnode_calls(block):
            command, rest = _command(words)
            if isinstance(command, click.Group) and not {"--help", "--version", "-h"} & set(rest):
                yield f"{page.path.name}:{block.line}: there is no command: ftnode {' '.join(words)}"
            known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            known |= {"--help", "-h", "--version"}
            for word in rest:
                if word.startswith("-") and word.partition("=")[0] not in known and not _is_number(word):
                    yield f"{page.path.name}:{block.line}: ftnode {words[0]} takes no {word}"


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-[\d.]+", word) is not None


def _command(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    return command, words


def ftnode_calls(block: Block) -> Iterator[list[str]]:
    """The words behind each `ftnode` at a command's place, up to the end of that command."""
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words = list(lexer)
        for place, word in enumerate(words):
            first = place == 0 or words[place - 1] in BEFORE_A_COMMAND
            if first and (word == "ftnode" or word.endswith("/bin/ftnode")):
                end = next((n for n in range(place + 1, len(words)) if words[n] in ENDS_A_COMMAND), len(words))
                yield words[place + 1 : end]


def too_many_words(page: Page) -> Iterator[str]:
    """Counted as `wc -w` counts."""
    words = len(page.path.read_text(encoding="utf-8").split())
    if words > README_WORDS_MAX:
        yield f"{page.path.name}: {words} words, and {README_WORDS_MAX} are allowed"


def merge_marks(page: Page) -> Iterator[str]:
    """Of a merge that nobody finished."""
    for line, text in enumerate(page.path.read_text(encoding="utf-8").splitlines(), 1):
        if text.startswith(("<<<<<<< ", ">>>>>>> ")):
            yield f"{page.path.name}:{line}: what a merge left"


def long_lines(page: Page) -> Iterator[str]:
    """Of prose. A row of a table cannot be wrapped, nor can a line that is nothing but a link."""
    for line, text in page.prose:
        if len(text) > LINE_MAX and not text.lstrip().startswith(("|", "![", "[")):
            yield f"{page.path.name}:{line}: {len(text)} characters"
