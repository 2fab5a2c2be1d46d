"""Rooms and files that pages name are there, and docs/explanation/architecture.md has every room."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
PACKAGES = ("protocol", "node", "lab")
NAMED = re.compile(r"`((?:bootstrap|protocol|models|node|lab|tests)/[\w./-]*\w)`")


def missing(page: str, root: Path) -> list[str]:
    return [name for name in NAMED.findall(page) if not (root / name).exists()]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_are_there(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8"), ROOT) == []


def rooms_of(page: str, package: str) -> Iterator[tuple[str, list[str]]]:
    """Each room that the page has a heading for, with the files that its list begins with before each colon."""
    section = page.partition(f"\n## {package}/")[2].partition("\n## ")[0]
    for room, text in re.findall(r"(?ms)^### `(\w+)/`[^\n]*\n(.*?)(?=^### |\Z)", section):
        items = re.findall(r"(?ms)^- (.*?)(?=^- |^$|\Z)", text)
        yield room, [name for item in items for name in re.findall(r"`(\w+)`", item)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_told_of_with_all_of_its_files(package: str) -> None:
    told = {room: set(names) for room, names in rooms_of(ARCHITECTURE.read_text(encoding="utf-8"), package)}
    rooms = {
        path.parent.name: {file.stem for file in path.parent.glob("*.py")} - {"__init__"}
        for path in (ROOT / package).glob("*/__init__.py")
    }
    assert told.keys() == rooms.keys() and len(rooms) > 5
    assert {room: names - told[room] for room, names in rooms.items() if names - told[room]} == {}
    known = {"Manifest"}
    assert {room: told[room] - names - known for room, names in rooms.items() if told[room] - names - known} == {}


def test_a_name_that_nothing_has_is_found(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    assert missing("see `node/none.py` and `node` and `none.py`, `node/`", tmp_path) == ["node/none.py"]
    page = "\n## node/\n\n### `home/`\n\n`no`\n\n- `paths`: those.\n- `files` and\n  `keys`\n\n### `links/`\n"
    assert dict(rooms_of(page, "node")) == {"home": ["paths", "files", "keys"], "links": []}


def test_the_architecture_has_every_module_of_models() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    found = {path.stem for path in (ROOT / "models").glob("*.py")} - {"__init__"}
    assert sorted(name for name in found if f"`{name}`" not in text) == []
