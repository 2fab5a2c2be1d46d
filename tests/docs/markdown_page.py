"""What a page in Markdown has in it: links, anchors and blocks of code.

This reads the Markdown that these pages use, not all of it: headings with `#`, inline links, fenced blocks and blocks
that are indented by four blanks outside of lists.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
INLINE_CODE = re.compile(r"(`+)(?!`)(?:[^\n]|\n(?!\n))*?(?<!`)\1(?!`)")
HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})\s*([\w-]*)")
COMMENT = re.compile(r"<!--\s*(.*?)\s*-->$")
LIST_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s")
SHELL = ("sh", "shell", "bash")


@dataclass(frozen=True)
class Block:
    """`line` is the number of its first line. `language` is what the fence says; "sh" for an indented block. `note` is
    the comment directly before the block."""

    line: int
    language: str
    note: str
    text: str


@dataclass(frozen=True)
class Page:
    """`prose` has the numbers and the text of all lines outside of blocks."""

    path: Path
    prose: tuple[tuple[int, str], ...]
    blocks: tuple[Block, ...]

    @property
    def links(self) -> list[tuple[int, str]]:
        """Line and target. What stands in backquotes is no link, and the words of a link may go over two lines."""
        lines = [line for line, _ in self.prose]
        text = _without_code("\n".join(text for _, text in self.prose))
        return [(lines[text.count("\n", 0, found.start())], found[1]) for found in LINK.finditer(text)]

    @property
    def anchors(self) -> set[str]:
        """As GitHub makes them of headings; the second heading of a name gets -1, and so on."""
        seen: Counter[str] = Counter()
        found = set()
        for _, text in self.prose:
            if heading := HEADING.match(text):
                name = slug(heading[2])
                found.add(f"{name}-{seen[name]}" if seen[name] else name)
                seen[name] += 1
        return found

    @property
    def shell(self) -> list[Block]:
        return [block for block in self.blocks if block.language in SHELL]


def slug(heading: str) -> str:
    """Lower case, blanks as hyphens, no punctuation."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _without_code(text: str) -> str:
    """Inline code becomes dots, so that `[x](y)` in it is no link while a link whose words are code stays."""
    return INLINE_CODE.sub(lambda code: re.sub(r"[^\n]", ".", code[0]), text)


def read_page(path: Path) -> Page:
    prose: list[tuple[int, str]] = []
    blocks: list[Block] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    number, note, in_list, after_blank = 0, "", False, True
    while number < len(lines):
        line = lines[number]
        if fence := FENCE.match(line):
            end = _end_of_fence(lines, number, fence[2])
            blocks.append(Block(number + 2, fence[3], note, "\n".join(lines[number + 1 : end])))
            number, note, after_blank = end + 1, "", False
            continue
        if line.startswith("    ") and line.strip() and after_blank and not in_list:
            end = _end_of_indented(lines, number)
            blocks.append(Block(number + 1, "sh", note, "\n".join(line[4:] for line in lines[number:end])))
            number, note = end, ""
            continue
        prose.append((number + 1, line))
        if line.strip():
            comment = COMMENT.match(line)
            note = comment[1] if comment else ""
            in_list = LIST_ITEM.match(line) is not None or (in_list and line.startswith(" "))
        after_blank = not line.strip() or bool(note)
        number += 1
    return Page(path, tuple(prose), tuple(blocks))


def _end_of_fence(lines: list[str], start: int, mark: str) -> int:
    for number in range(start + 1, len(lines)):
        if lines[number].strip().startswith(mark):
            return number
    return len(lines)


def _end_of_indented(lines: list[str], start: int) -> int:
    """The line after the last one that is indented; blank lines between two of them belong to the block."""
    end = number = start
    while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
        number += 1
        if lines[number - 1].strip():
            end = number
    return end
