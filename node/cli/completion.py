"""What the Tab key offers beside commands and options: names of files, where a value is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VARIABLE: Final = "_FTNODE_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
FOLDERS: Final = {"DIR", "FOLDER"}
PATHS: Final = {"FILE", "MANIFEST", "PATH", "SOURCE", *FOLDERS}
"""Words of help that stand for the name of a file or folder."""


class NamedPath(click.types.StringParamType):
    """A text that may be the name of a file (`file`) or of a folder (`dir`), which the shell completes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=self.kind)]


def complete_paths(command: click.Command) -> click.Command:
    """Its texts that are called like a path are completed as one. What they may be is for the command to say."""
    for param in command.params:
        words = set(re.findall("[A-Z]+", param.metavar or "")) & PATHS
        if words and type(param.type) is click.types.StringParamType:
            param.type = NamedPath("dir" if words <= FOLDERS else "file")
    return command


def check_request(environment: Mapping[str, str]) -> None:
    """What the shell's start asks for. Raises UsageError where click would end without a word."""
    asked = environment.get(VARIABLE, "")
    known = {f"{shell}_{what}" for shell in SHELLS for what in ("source", "complete")}
    if asked and asked not in known:
        raise click.UsageError(f"{VARIABLE}={asked} asks for nothing; it is bash_source, zsh_source or fish_source")
