"""The lab, by name. Nothing in the node depends on it, and an installation may come without it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from ftnode.protocol.words.errors import UserError


def is_installed(module: str) -> bool:
    """Whether the package `ftnode.X` that a module is in is here."""
    return find_spec(".".join(module.split(".")[:2])) is not None


def load(module: str) -> ModuleType:
    """Any module of ftnode. Raises UserError (69) for one of the lab where that is not installed."""
    if not is_installed(module):
        raise UserError("this needs the package ftnode.lab, which is not installed here; install all of ftnode", 69)
    return import_module(module)
