"""What click finds wrong with what was typed, in words like those of every other error: one line, without the names
that click has for kinds of values."""

from __future__ import annotations

from difflib import get_close_matches

import click


def told(error: click.ClickException) -> str:
    """What is wrong, without a full stop, and what may have been meant."""
    if isinstance(error, click.NoSuchOption):
        near = get_close_matches(error.option_name, error.possibilities or (), 3)
        return error.message.rstrip(".") + (f"; did you mean {' or '.join(near)}?" if near else "")
    if isinstance(error, click.MissingParameter):
        return f"{_name(error)} is missing"
    if isinstance(error, click.BadParameter):
        name, several = _name(error), error.param.nargs if error.param is not None else 1
        takes = f" takes {several} values, {_placeholder(error)}" if several > 1 else ""
        return f"{name}{takes}: {error.message.rstrip('.')}" if name else error.message.rstrip(".")
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} needs a value" if "requires" in error.message else error.message.rstrip(".")
    return error.format_message().removeprefix("Got ").rstrip(".")


def _name(error: click.BadParameter) -> str:
    """Of the option in its long form, or of the argument."""
    param = error.param
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.human_readable_name if param is not None else ""


def _placeholder(error: click.BadParameter) -> str:
    return str(getattr(error.param, "metavar", None) or "")
