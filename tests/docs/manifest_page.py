"""docs/reference/manifest-keys.md, held to protocol/manifest/sections.py.

The tables of keys are written from the sources, which are the only place where a key is described. The prose around
them stands on the page alone. `FTNODE_UPDATE=1 python -m pytest tests/docs/test_manifest_page.py` writes the tables
anew.
"""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from ftnode.node.manifests.presets import PRESETS
from ftnode.protocol.manifest import parse as reader
from ftnode.protocol.manifest.sections import FORMATS_READ, Allowed, Manifest

HEAD = "| key | type | allowed | `tiny` has | since | before that | |"
SECTIONS: dict[str, type] = typing.get_type_hints(Manifest)
TYPES = {
    int: "whole number", float: "number", str: "text", bool: "true or false",
    tuple[float, float]: "list of two numbers", tuple[str, ...]: "list of texts",
}  # fmt: skip


def table(section: str) -> str:
    kind, hints = SECTIONS[section], typing.get_type_hints(SECTIONS[section])
    lines = [HEAD, "|---|---|---|---|---|---|---|"]
    for entry in fields(kind):
        shown = getattr(getattr(PRESETS["tiny"], section), entry.name)
        cells = [
            f"`{entry.name}`", TYPES[hints[entry.name]], allowed(hints[entry.name], entry.metadata["allowed"]),
            value(shown), since(entry), before(entry), entry.metadata["allowed"].about.replace("|", "\\|"),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def allowed(kind: Any, key: Allowed) -> str:
    if kind is bool:
        return "`true`, `false`"
    if kind is str:
        later = dict(key.later)
        shown = [f'`"{choice}"`' + (f" (format {later[choice]})" if choice in later else "") for choice in key.choices]
        return " or ".join(filter(None, [", ".join(shown), key.pattern_name]))
    if kind == tuple[str, ...]:
        return f"at most {key.high:,} {key.pattern_name}"
    return f"{_number(key.low)} to {_number(key.high)}"


def _number(number: float) -> str:
    return f"{Decimal(reader.in_digits(number)):,f}"


def value(found: Any) -> str:
    """As TOML has it; of the corpus's hash only that it is one."""
    text = reader.as_toml(found)
    return "that of the corpus" if re.fullmatch('"0{64}"', text) else f"`{text}`"


def since(entry: Field[Any]) -> str:
    """The first format that has the key."""
    return str(max(entry.metadata["since"], min(FORMATS_READ)))


def before(entry: Field[Any]) -> str:
    """What a manifest of an earlier format means."""
    return "" if entry.default is MISSING else f"`{reader.as_toml(entry.default)}`"


def rewritten(page: str) -> str:
    """The page with the tables as they should be: one below the heading of each section."""
    parts = re.split(r"(?m)^(?=## )", page)
    found = {re.match(r"## `\[(\w+)\]`", part)[1]: part for part in parts if part.startswith("## `[")}  # type: ignore[index]
    wanted = {section: _with_table(found.get(section, f"## `[{section}]`\n\n"), section) for section in SECTIONS}
    before_them = parts[: _first(parts)]
    after = [part for part in parts[_first(parts) :] if not part.startswith("## `[")]
    return "\n\n".join(part.strip("\n") for part in [*before_them, *wanted.values(), *after]) + "\n"


def _first(parts: list[str]) -> int:
    return next((number for number, part in enumerate(parts) if part.startswith("## `[")), len(parts))


def _with_table(part: str, section: str) -> str:
    lines = [line for line in part.strip("\n").splitlines() if not line.startswith("|")]
    while lines[-1:] == [""]:
        lines.pop()
    return "\n".join([*lines, "", table(section)])


def joint_conditions() -> Iterator[str]:
    """`section.key` of each complaint of the reader about values that do not fit together, as often as it has one."""
    tree = ast.parse(Path(reader.__file__).read_text(encoding="utf-8"))
    fits = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.endswith("_fits")]
    for node in (node for part in fits for node in ast.walk(part)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_fail":
            section, name = (argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant))
            yield f"{section}.{name}"
