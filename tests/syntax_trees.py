"""The syntax trees of our own files, parsed once in a process, and all nodes of a tree, gathered once."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ftnode.node.watch.light_client import no_collection

ROOT = Path(__file__).parent.parent


@cache
def trees_of(package: str) -> dict[str, ast.Module]:
    """By path from the repository's root, with forward slashes. `package` is a folder at that root."""
    with no_collection():
        return {
            path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"), str(path))
            for path in sorted((ROOT / package).rglob("*.py"))
            if "__pycache__" not in path.parts
        }


@cache
def nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """As `ast.walk`."""
    with no_collection():
        return tuple(ast.walk(tree))
