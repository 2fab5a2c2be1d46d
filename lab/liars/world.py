"""The kinds of lies in the virtual world, which is part of the tests: this needs a clone of the repository."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from ftnode.protocol.words.errors import UserError


def measure(kind: str, worlds: int) -> dict[str, Any]:
    """As tests/sim/liars.py says. Raises UserError (69) outside a clone."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests" / "sim" / "liars.py").is_file():
        raise UserError("the virtual world is not part of the installed package: run this from a clone", 69)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    liars: Any = importlib.import_module("tests.sim.liars")
    found: dict[str, Any] = liars.measure(kind, worlds)
    return found
