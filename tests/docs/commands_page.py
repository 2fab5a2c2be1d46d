"""docs/reference/commands.md, held to the program.

What the program knows stands there as the program has it: commands, options, values, defaults, variables. What only a
person can say, how an option is meant, stands on the page alone and is kept: a line of `--help` has room for ten words,
the page for cases and links. `FTNODE_UPDATE=1 python -m pytest tests/docs/test_commands_page.py` writes the page anew;
a new option then has the words of its `--help`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import click

from ftnode.node.cli.config_file import variable
from ftnode.node.cli.lazy_group import LazyGroup
from ftnode.node.cli.main import cli
from ftnode.node.cli.options import number_text, range_text

HEAD = "| option | values | default | variable | |"
INDEX = "| command | |"
SECTION = re.compile(r"(?m)^## (?=`ftnode )")


def commands() -> dict[tuple[str, ...], click.Command]:
    """Every command by its words, in the order of `--help`."""
    return {words: load() for words, load in cli.leaves()}


def name_of(words: tuple[str, ...]) -> str:
    return " ".join(("ftnode", *words))


def abouts(group: LazyGroup = cli, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every command with its line in the list of `--help`."""
    for name, (_, about) in group.table.items():
        command = group.get_command(click.Context(group), name)
        if isinstance(command, LazyGroup):
            yield from abouts(command, (*words, name))
        else:
            yield (*words, name), about


def index() -> str:
    """The table of all commands."""
    lines = [INDEX, "|---|---|"]
    for words, about in abouts():
        name = name_of(words)
        lines.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {about} |")
    return "\n".join(lines)


def usage(words: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=name_of(words))
    pieces = [piece for param in command.params for piece in param.get_usage_pieces(context)]
    shown = ["[OPTIONS]"] if options(command) else []
    return f"Usage: `{' '.join([name_of(words), *shown, *pieces])}`"


def options(command: click.Command) -> list[click.Option]:
    """Those that do something."""
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def longest(option: click.Option) -> str:
    return max(option.opts, key=len)


def table(words: tuple[str, ...], command: click.Command, known: Mapping[str, str]) -> str:
    """`known`: option → what the page says of it."""
    lines = [HEAD, "|---|---|---|---|---|"]
    for option in options(command):
        meaning = known.get(longest(option)) or (option.help or "").replace("|", "\\|")
        cells = [names(option), values(option), default(option), f"`{variable(words, longest(option)[2:])}`", meaning]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def names(option: click.Option) -> str:
    placeholder = "" if option.is_flag else " " + (option.metavar or _placeholder(option))
    spelt = [f"{name}{placeholder}" for name in (*sorted(option.opts, key=len), *option.secondary_opts)]
    return ", ".join(f"`{name}`" for name in spelt).replace("|", "\\|")


def _placeholder(option: click.Option) -> str:
    """As a person would write it, where the program has no name for the value."""
    if isinstance(option.type, click.types.IntParamType):
        return "N"
    if isinstance(option.type, click.types.FloatParamType):
        return "SECONDS" if (option.help or "").startswith("Seconds") else "X"
    if isinstance(option.type, click.Choice):
        return "NAME"
    return "PATH" if isinstance(option.type, click.Path) else "TEXT"


def values(option: click.Option) -> str:
    """What it takes, as far as the program says."""
    kind, said = option.type, []
    if isinstance(kind, click.Choice):
        said.append(" or ".join(f"`{choice}`" for choice in kind.choices))
    elif isinstance(kind, click.types._NumberRangeBase):
        said.append("" if kind.min is None else range_text(kind))
    elif isinstance(kind, click.Tuple):
        said.append("two numbers")
    return ", ".join(filter(None, [*said, "repeats" if option.multiple else ""]))


def default(option: click.Option) -> str:
    if option.required:
        return "must be given"
    found = option.default
    if option.secondary_opts:
        return f"`{option.opts[0] if found else option.secondary_opts[0]}`"
    if option.is_flag or not isinstance(found, str | int | float | tuple):
        return ""
    shown = found if isinstance(found, tuple) else (found,)
    texts = [number_text(value) if isinstance(value, float) else str(value) for value in shown]
    return f"`{' '.join(texts)}`" if shown else ""


# -- the page


def sections(page: str) -> dict[str, str]:
    """Command → its section, heading included. The empty key: what stands before the first."""
    first, *rest = SECTION.split(page)
    return {"": first} | {part.split("`")[1]: f"## {part}" for part in rest}


def meanings(section: str) -> dict[str, str]:
    """Option → what the page says of it."""
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]
        option = re.search(r"--[a-z-]+", cells[0])
        if line.startswith("| `-") and option:
            for name in re.findall(r"--[a-z-]+", cells[0]):
                found[name] = cells[-1].replace("\0", "\\|")
    return found


def rewritten(page: str) -> str:
    """The page as it should be."""
    found = sections(page)
    parts = [_with_table(found[""], INDEX, index())]
    for words, command in commands().items():
        name = name_of(words)
        old = found.get(name) or f"## `{name}`\n\nUsage:\n\n{inspect.cleandoc(command.help or '')}\n\n{HEAD}\n"
        new = "\n".join(usage(words, command) if line.startswith("Usage:") else line for line in old.splitlines())
        wanted = table(words, command, meanings(old)) if options(command) else ""
        parts.append(_with_table(new, "| option |", wanted))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _with_table(text: str, head: str, table_text: str) -> str:
    """The text with this table in place of the one that begins so."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(head)), None)
    if start is None:
        return f"{text.rstrip()}\n\n{table_text}" if table_text else text
    end = start
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "\n".join([*lines[:start], *table_text.splitlines(), *lines[end:]])


def exit_codes(section: str) -> set[int]:
    """Those that a section names, in the paragraphs that begin with `Exit code`."""
    paragraphs = re.findall(r"(?ms)^Exit codes?\b.*?(?=\n\n|\Z)", section)
    return {int(number) for paragraph in paragraphs for number in re.findall(r"`(\d+)`", paragraph)}
