"""docs/explanation/protocol.md: rules that fit on a page, under the numbers that the code cites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "protocol.md"
SENTENCES_MAX = 5
EXCEPTION_SENTENCES_MAX = 2
EXCEPTIONS_MAX = 4
SEMICOLONS_MAX = 2
"""A chain of clauses is no shorter than the sentences that it hides."""
PLACES = ("protocol", "node", "lab", "tests", "models", "bootstrap")
CITED = re.compile(
    r"\brules?\s+(\d+(?:(?:\s*(?:,|-|–|to|and)\s*(?:rules?\s+)?|\s+\(?[iv]+\)?,?\s*(?:and\s+)?)\d+)*)", re.IGNORECASE
)
END = re.compile(r"(?<![.\s])[.!?](?=[*)\"”]*(?:\s+[^\s\da-z]|\s*$))")


@dataclass(frozen=True)
class Rule:
    number: int
    text: str
    """Without what guards it and without its exceptions."""
    exceptions: tuple[str, ...]
    guards: str


def rules(page: str) -> dict[int, Rule]:
    found = {}
    for item in re.findall(r"(?ms)^\d+\. .*?(?=^\d+\. |^\S|\Z)", page):
        text, *below = re.split(r"(?m)^ +- ", item)
        number, _, words = text.partition(". ")
        assert int(number) not in found, f"rule {number} stands there twice"
        guards = [line for line in below if line.startswith("*guarded by*")]
        exceptions = tuple(" ".join(line.split()) for line in below if line not in guards)
        untitled = re.sub(r"^\*\*[^*]+\.\*\*", "", words)
        found[int(number)] = Rule(int(number), " ".join(untitled.split()), exceptions, " ".join(guards))
    return found


def sentences(text: str) -> int:
    return len(END.findall(re.sub(r"`[^`]*`", "x", text)))


def cited(text: str) -> Iterator[int]:
    """The numbers of `rule 16`, `rules 10, 11`, `rules 34 to 36`, `rules 18 iii, 22`."""
    for match in CITED.findall(" ".join(text.split())):
        for first, last in re.findall(r"(\d+)(?:\s*(?:-|–|to)\s*(?:rule\s+)?(\d+))?", match):
            yield from range(int(first), int(last or first) + 1)


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_rules_are_numbered_without_a_gap(page: str) -> None:
    numbers = list(rules(page))
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 30


def too_long(page: str) -> list[str]:
    found = []
    for number, rule in rules(page).items():
        if not 1 <= sentences(rule.text) <= SENTENCES_MAX:
            found.append(f"rule {number} has {sentences(rule.text)} sentences")
        if len(rule.exceptions) > EXCEPTIONS_MAX:
            found.append(f"rule {number} has {len(rule.exceptions)} exceptions")
        found += [
            f"rule {number} has a long or nameless exception: {exception}" for exception in rule.exceptions
            if not re.match(r"\*[^*]+\*", exception) or sentences(exception) > EXCEPTION_SENTENCES_MAX
        ]  # fmt: skip
        if any(text.count(";") > SEMICOLONS_MAX for text in (rule.text, *rule.exceptions)):
            found.append(f"rule {number} chains clauses by semicolons")
    return found


def test_no_rule_is_longer_than_five_sentences(page: str) -> None:
    assert too_long(page) == []


def test_every_rule_that_is_cited_is_on_the_page(page: str) -> None:
    known, missing, seen = rules(page), [], set()
    for path in sorted(path for place in PLACES for path in (ROOT / place).rglob("*.py")):
        for number in cited(path.read_text(encoding="utf-8")) if path != Path(__file__) else ():
            seen.add(number)
            if number not in known:
                missing.append(f"{path.relative_to(ROOT)}: rule {number}")
    assert missing == []
    assert len(seen) > 25


def test_what_guards_a_rule_is_there(page: str) -> None:
    links = re.findall(r"\]\((\.\./[^)#]+)", page)
    assert [link for link in links if "/tests/" in link and not (PAGE.parent / link).exists()] == []
    unguarded = [number for number, rule in rules(page).items() if not rule.guards]
    assert set(unguarded) <= {2, 3, 4, 5, 6, 7, 15, 28}, "a rule that nothing guards"


def test_every_transcript_is_named(page: str) -> None:
    kept = {path.name for path in (ROOT / "tests" / "sim" / "transcripts").glob("*.txt")}
    assert len(kept) > 15
    assert {name for name in kept if name not in page} <= {"16-newcomer-dies.txt"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("1. **A.** One. Two. Three. Four. Five.", 5),
        ("1. **A.** `Begin(t. x)` at 1.2 % of 3 .. S. **It commits.** Then?", 3),
        ("1. **A.** A first (18 ii). [Here](x.md) more.", 2),
    ],
)
def test_sentences_are_counted(rule: str, expected: int) -> None:
    assert sentences(re.sub(r"^1\. \*\*A\.\*\* ", "", rule)) == expected


def test_a_rule_that_is_too_long_is_found() -> None:
    assert too_long("1. **A.** " + "It is so. " * 6) == ["rule 1 has 6 sentences"]
    assert too_long("1. **A.** It is.\n   - A case. Another. A third.\n")
    assert too_long("1. **A.** If so, this; if not, that; else, those; but, who.")


def test_citations_are_read() -> None:
    text = (
        "(rules 18 iii, 22) Rule 16, and rules 34 to 37; rules 11-13, rule 18 i and ii; Rules 11, 14, 16, 37 and more"
    )
    assert list(cited(text)) == [18, 22, 16, *range(34, 38), 11, 12, 13, 18, 11, 14, 16, 37]
