"""One file per run of the recovery lab, written whole or not at all, so that a lab goes on where it was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str) -> None:
    """Into a temporary neighbour first, then renamed: a file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(content)
    os.replace(temporary, path)


def kept_or_made(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result at `path` where there is one, else what `make` gives, which is kept there."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    made = make()
    write_atomically(path, json.dumps(made) + "\n")
    return made
