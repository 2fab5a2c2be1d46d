"""What a command ends with when something goes wrong: one line on stderr, and an exit code by sysexits(3).

What is nobody's fault but ours is no line: it is raised, and shown whole.
"""

from __future__ import annotations

import sys
from traceback import walk_tb

import click

from ftnode.node.cli.typed_wrongly import told
from ftnode.node.home.closed_terminal import forget_output
from ftnode.protocol.words.errors import UserError

ERRORS = "cli"

INTERRUPTED = 130
USAGE = 64


class ReaderGoneError(Exception):
    """A BrokenPipeError that click may not see: it would end the process with 1, which a command that has found
    something wrong ends with."""


def report(error: BaseException) -> int:
    """Say an expected error in one line, and return its exit code."""
    if isinstance(error, UserError):
        say(f"{error} [{error.code}]")
        return error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    if isinstance(error, click.ClickException):
        say(f"{told(error)}{_usage(error)} [E64-usage]")
        return USAGE
    if isinstance(error, BrokenPipeError):
        forget_output()  # who reads us has enough, as in `ftnode status | head`
        return 141
    if isinstance(error, OSError):
        forget_output()
        return report(UserError(f"cannot write to the standard output: {error.strerror}; see where it leads", 74))
    return INTERRUPTED


def _usage(error: click.ClickException) -> str:
    """Where help is; how a command is used, for who uses it otherwise than it is meant."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return ""
    see = f"see {context.command_path} --help"
    asks = type(error) in (click.UsageError, click.MissingParameter)
    if not asks or isinstance(context.command, click.Group):
        return f" ({see})"
    return f"; use: {' '.join((context.command_path, *context.command.collect_usage_pieces(context)))} ({see})"


def is_of_output(error: BaseException) -> bool:
    """Whether the standard output did not take what a command says, as on a full disk, or still does not."""
    if not isinstance(error, OSError):
        return False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if frames and frames[-1].f_code is click.echo.__code__:
        return True
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def report_group(group: BaseExceptionGroup[BaseException]) -> int:
    """Errors out of nurseries: one line when all are expected; else it is a bug, and shown whole."""
    leaves = list(_leaves(group))
    if not all(isinstance(leaf, (UserError, KeyboardInterrupt)) or is_of_output(leaf) for leaf in leaves):
        raise group
    return report(next((leaf for leaf in leaves if isinstance(leaf, UserError)), leaves[0]))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def say(message: str) -> None:
    """One line. Messages quote files and peers: what could control a terminal becomes a question mark."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in " ".join(message.split()))
    print(f"ftnode: {shown}", file=sys.stderr)
