"""docs/reference/commands.md says what the program does: every command, option, value, default, variable, exit code."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.docs import commands_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "commands.md"
ERRORS = PAGE.with_name("errors.md")
USAGE = 64


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_has_what_the_program_has(page: str) -> None:
    wanted = commands_page.rewritten(page)
    if os.environ.get("FTNODE_UPDATE"):
        PAGE.write_text(wanted, encoding="utf-8")
    else:
        assert page == wanted, "the program says something else: FTNODE_UPDATE=1, then say on the page how it is meant"


def test_every_command_and_option_is_explained(page: str) -> None:
    for name, section in commands_page.sections(page).items():
        assert not [line for line in section.splitlines() if re.match(r"\| (\[`ftnode|`-).*\|\s*\|$", line)], name
        assert not name or re.search(r"(?m)^Usage:.*\n\n[A-Z]", section), name


def test_exit_codes_that_a_command_raises_stand_in_its_section(page: str) -> None:
    """Those of its own module; what lies deeper is on the page of errors."""
    said, modules = commands_page.sections(page), dict[Path, set[int]]()
    for words, command in commands_page.commands().items():
        module = Path(inspect.getsourcefile(inspect.unwrap(callback_of(command))) or "")
        modules.setdefault(module, set()).update(commands_page.exit_codes(said[commands_page.name_of(words)]))
    raised = {module: codes_of(module) - {USAGE} for module in modules}
    assert sum(map(len, raised.values())) > 10
    assert {module.name: codes - modules[module] for module, codes in raised.items() if codes - modules[module]} == {}


def codes_of(module: Path) -> set[int]:
    """Exit codes that a file's own calls of UserError name."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "UserError":
            given = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "exit_code")]
            either = [part for one in given for part in ast.walk(one) if isinstance(part, ast.Constant)]
            found |= {part.value for part in either if isinstance(part.value, int)}
    return found


def test_both_pages_name_the_same_commands_that_find_something_wrong(page: str) -> None:
    said = {
        name.removeprefix("ftnode ") for name, section in commands_page.sections(page).items()
        if name and 1 in commands_page.exit_codes(section)
    }  # fmt: skip
    row = next(line for line in ERRORS.read_text(encoding="utf-8").splitlines() if line.startswith("| 1 |"))
    assert said == set(re.findall(r"`([a-z ]+)`", row))
    returning = {
        " ".join(words) for words, command in commands_page.commands().items()
        if "int" in str(inspect.signature(callback_of(command)).return_annotation)
    }  # fmt: skip
    assert said <= returning


def test_every_exit_code_on_the_page_is_explained_on_that_of_errors(page: str) -> None:
    explained = {int(number) for number in re.findall(r"(?m)^\| (\d+) \|", ERRORS.read_text(encoding="utf-8"))}
    assert {
        code for section in commands_page.sections(page).values() for code in commands_page.exit_codes(section)
    } <= explained


def callback_of(command: click.Command) -> Callable[..., object]:
    assert command.callback is not None
    return command.callback


def test_a_page_that_lags_behind_is_found(page: str) -> None:
    for wrong in (
        page.replace("`--hand-over SECONDS`", "`--hand-over MINUTES`"),
        page.replace("| 1 to 64 | `4` |", "| 1 to 64 | `5` |"),
        page.replace("`FTNODE_JOIN_PEER`", "`FTNODE_PEER`"),
        page.replace("Usage: `ftnode id [OPTIONS]`", "Usage: `ftnode id`"),
        page.replace("## `ftnode id`", "## `ftnode identity`"),
        re.sub(r"(?m)^\| `--max-temp .*\n", "", page),
    ):
        assert wrong != page
        assert commands_page.rewritten(wrong) == page or "identity" in wrong


def test_numbers_have_all_their_digits(page: str) -> None:
    assert not re.findall(r"\de[+]\d", page)


def test_a_new_option_gets_the_words_of_its_help() -> None:
    @click.command()
    @click.option("--often", type=click.IntRange(1, 9), default=3, help="How often.")
    def command(often: int) -> None: ...

    rows = commands_page.table(("join",), command, {}).splitlines()
    assert rows[2:] == ["| `--often N` | 1 to 9 | `3` | `FTNODE_JOIN_OFTEN` | How often. |"]
