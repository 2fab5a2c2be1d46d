"""Paths as a person types them, and the folders of the platform for who types none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftnode.protocol.words.errors import UserError

ERRORS = "typed_paths"


def typed_path(text: str | Path) -> Path:
    """With `~` and `~name` as in a shell. Raises UserError (64) when nobody knows that home directory."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"{text}: this machine knows no such home directory; write the whole path") from None


def whole_path(text: str | Path) -> Path:
    """Also from the root. Raises UserError, and (66) when it begins in a folder that has been deleted."""
    path = typed_path(text)
    try:
        return path.absolute()
    except OSError as error:
        raise UserError(
            f"{path} begins in a folder that cannot be found: {error.strerror}; write the whole path", 66
        ) from None


def platform_folder(find: Callable[..., Path]) -> Path:
    """`find`: of platformdirs. Raises UserError (78) for a user without a home directory."""
    try:
        return find("ftnode", appauthor=False)
    except RuntimeError:
        raise UserError("this user has no home directory; set HOME, or choose a folder with --home", 78) from None
