"""Manifests as versions before this one wrote them."""

from __future__ import annotations

import typing
from dataclasses import fields

from ftnode.protocol.manifest.sections import FORMAT, Manifest

SINCE: dict[tuple[str, str], int] = {
    (section, entry.name): entry.metadata["since"]
    for section, kind in typing.get_type_hints(Manifest).items()
    for entry in fields(kind)
}


def in_format(text: str, number: int) -> str:
    """Without the keys, and the sections, that came later."""
    section, kept = "", []
    for line in text.replace(f"format = {FORMAT}", f"format = {number}").splitlines():
        section = line[1:-1] if line.startswith("[") else section
        known = [since for (its, _), since in SINCE.items() if its == section]
        if not known or min(known) <= number:
            kept += [line] if SINCE.get((section, line.split(" = ")[0]), 0) <= number else []
    return "\n".join(kept)
