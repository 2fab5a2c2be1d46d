"""`ftnode config show` and `path`: which values commands take when nothing is typed, and where each comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ftnode.node.cli.config_file import (
    CONFIGURATION,
    ConfigFile,
    Words,
    check_sections,
    config_path,
    keys_of,
    prepare,
    read_config,
    variable,
)
from ftnode.node.cli.limits import Limit
from ftnode.node.cli.options import home_option, json_option
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_config"


@click.command()
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
@json_option
@home_option
def show(command: tuple[str, ...], as_json: bool, home: str | None) -> None:
    """Print each option's value and where it is from: default, environment or file. COMMAND, as join: of this one."""
    from ftnode.node.cli.main import cli

    file = read_config(config_path(home))
    check_sections(file, [words for words, _ in cli.leaves()])
    leaves = cli.leaves(installed=not command)  # who asks for a command of the lab is told that the lab is missing
    wanted = [(words, load()) for words, load in leaves if words[: len(command)] == command]
    found = [value for words, each in wanted for value in _values(words, each, file)]
    if command and not found:
        raise UserError(f"no command is called {' '.join(command)}; ftnode --help lists them")
    if as_json:
        there = file.tables is not None
        click.echo(json.dumps({"format": 1, "file": str(file.path), "exists": there, "values": found}))
        return
    click.echo(f"# {file.path}" + ("" if file.tables is not None else ", which is not there"))
    section = ""
    for value in found:
        if value["command"] != section:
            section = value["command"]
            click.echo(f"\n[{section.replace(' ', '.')}]")
        unset = value["value"] in (None, [])
        shown = f"# {value['option']} = " if unset else f"{value['option']} = {json.dumps(value['value'])}"
        click.echo(f"{shown:<44}  # {value['where'] or value['origin']}")


@click.command()
@json_option
@home_option
def path(as_json: bool, home: str | None) -> None:
    """Print where the configuration file is, or would be."""
    file = config_path(home)
    click.echo(json.dumps({"format": 1, "file": str(file), "exists": file.exists()}) if as_json else str(file))


def _values(words: Words, command: click.Command, file: ConfigFile) -> Iterator[dict[str, Any]]:
    prepare(command, words, file)
    context = click.Context(command, info_name=" ".join(words), default_map=command.context_settings["default_map"])
    for key, option in keys_of(command).items():
        if option.hidden or key == "home":
            continue
        given, source = option.consume_value(context, {})
        origin, where = "default", ""
        if source is ParameterSource.ENVIRONMENT:
            origin, where = "environment", variable(words, key)
        elif source is ParameterSource.DEFAULT_MAP:
            origin, where = "file", file.where(words, key)
        try:
            value = option.type_cast_value(context, None if _is_unset(given) else given)
        except click.BadParameter as error:
            raise UserError(f"in {where}: {key}: {error.message}", CONFIGURATION) from None
        if isinstance(option.type, Limit):  # an amount of memory or a rate: as a person writes it
            value = given
        yield {"command": " ".join(words), "option": key, "value": _plain(value), "origin": origin, "where": where}


def _is_unset(value: Any) -> bool:
    """click's own mark of a value that nobody gave."""
    return type(value).__name__ == "Sentinel"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
