"""Groups of commands, whose modules are loaded when a command is called, so that `--help` is quick.

    words typed → the group finds the command → values of the environment and of config.toml → the command runs

An error that complains of a value says where the value stands, when it was not typed. Who types something near to a
command hears what was meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias, Union

import click

from ftnode.node.cli.complaints import ReaderGoneError, say
from ftnode.node.cli.completion import complete_paths
from ftnode.node.cli.lab_by_name import is_installed, load
from ftnode.node.cli.typed_wrongly import told
from ftnode.protocol.words.errors import UserError

ERRORS = "cli"

CONFIGURATION = 78
MEANT = {"check": "validate", "new": "init", "create": "init", "stop": "leave", "start": "join", "info": "show"}
"""What some type → the command that does it, where a group has it."""
OPTIONS_MEANT = {"limits": ("--up", "--down", "--vram", "--threads", "--nice"), "hours": ("--schedule",)}
"""What some type as a command → options of `ftnode join`."""
ORIGIN = "ftnode.origin"
"""In click's meta: where the value stands that an error complains of."""
Place: TypeAlias = Union[str, "LazyGroup"]
"""Where a command is: "module:attribute", or a group of others."""


class LazyGroup(click.Group):
    """A group that knows the one-line help of its commands without loading them."""

    def __init__(self, name: str, about: str, table: dict[str, tuple[Place, str]]) -> None:
        super().__init__(name, help=about, context_settings={"help_option_names": ["-h", "--help"]})
        self.table = table
        """Command name → (where it is, one line of help)."""

    def leaves(
        self, words: tuple[str, ...] = (), installed: bool = False
    ) -> Iterator[tuple[tuple[str, ...], Callable[[], click.Command]]]:
        """Every command below this group by its words, with what loads it; `installed`: those that can be loaded."""
        for name, (place, _) in self.table.items():
            if isinstance(place, LazyGroup):
                yield from place.leaves((*words, name), installed)
            elif not installed or is_installed(place.partition(":")[0]):
                yield (*words, name), partial(self._load, name)

    def _load(self, name: str) -> click.Command:
        place = self.table[name][0]
        if isinstance(place, LazyGroup):
            return place
        module, _, attribute = place.partition(":")
        command = getattr(load(module), attribute)
        assert isinstance(command, click.Command)
        return complete_paths(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        return self._load(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.table.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`help` before a command asks for that command's, and alone for the group's own. An option of commands that
        stands before them is told its place."""
        try:
            return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)
        except click.NoSuchOption as error:
            if error.option_name not in ("--home", "--json", "--peer", "--run", "--timeout"):
                raise
            ctx.fail(f"{error.option_name} goes behind the command: {ctx.command_path} COMMAND {error.option_name}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            ctx.fail(f"no command is called {args[0]}; {self._hint(args[0], ctx.command_path)}")
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None and not isinstance(command, click.Group):
            _configure(ctx, command, (*ctx.command_path.split()[1:], name), list(rest))
        return name, command, rest

    def _hint(self, word: str, path: str) -> str:
        """What somebody means who types `word` for a command of this group, which is called `path`."""
        from difflib import get_close_matches

        near = [MEANT[word]] if MEANT.get(word) in self.table else get_close_matches(word, [*self.table, "help"], 1)
        if near:
            return f"did you mean {near[0]}?"
        if word in ("version", "--version"):
            return "it is: ftnode --version"
        if "join" in self.table:
            taken = {name for option in self._load("join").params for name in option.opts}
            if options := [name for name in OPTIONS_MEANT.get(word, (f"--{word}",)) if name in taken]:
                return f"ftnode join takes {', '.join(options)}"
        below = [f"{path} {' '.join(words)}" for words, _ in self.leaves() if words[-1] == word]
        return f"did you mean {' or '.join(below)}?" if below else f"there are {', '.join(self.table)}"

    def invoke(self, ctx: click.Context) -> Any:
        """An error that complains of a value says where that stands, when it was not typed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        except (UserError, click.BadParameter) as error:
            where = ctx.meta[ORIGIN](error) if ORIGIN in ctx.meta else ""
            if not where:
                raise
            text = told(error) if isinstance(error, click.BadParameter) else str(error)
            raise UserError(f"in {where}: {text}", CONFIGURATION) from None


def _configure(ctx: click.Context, command: click.Command, words: tuple[str, ...], arguments: list[str]) -> None:
    """Values of the environment and of config.toml, for this command. Its owner can stop a node whatever they say."""
    from ftnode.node.cli.config_file import (
        ConfigFile,
        check_sections,
        check_values,
        config_path,
        forgo,
        home_among,
        named,
        prepare,
        read_config,
    )

    commands = ctx.find_root().command
    assert isinstance(commands, LazyGroup)
    owners = words[0] in ("pause", "resume", "leave")
    path = config_path(home_among(arguments, words))
    file = ConfigFile(path)
    try:
        if words[0] != "config":
            file = read_config(path)
            check_sections(file, [words for words, _ in commands.leaves()])
        prepare(command, words, file)
        if owners:
            check_values(command, words, file)
    except UserError as error:
        if not owners:
            raise
        say(f"goes on without the configuration: {error} [{error.code}]")
        file = ConfigFile(path)
        forgo(command)
    _warn_of_strays(commands)
    ctx.meta[ORIGIN] = lambda error: named(error, words, arguments, command, file)


def _warn_of_strays(commands: LazyGroup) -> None:
    """One line for each variable that is misspelt before its command's name is over: no command would complain."""
    from ftnode.node.cli.config_file import keys_of, stray_line, strays, variable

    for name in strays(os.environ, (words for words, _ in commands.leaves())):
        known = [
            variable(words, key) for words, command in commands.leaves(installed=True) for key in keys_of(command())
        ]
        say(stray_line(name, known))
