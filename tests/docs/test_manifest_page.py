"""docs/reference/manifest-keys.md lists every key of a manifest as the sources have it."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from ftnode.node.manifests.check_choice import with_checks
from ftnode.node.manifests.line_choice import choose
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.manifests.protection_choice import with_protection
from ftnode.node.manifests.snapshot_choice import with_snapshots
from ftnode.protocol.manifest.sections import FORMAT, FORMATS_READ
from tests.docs import manifest_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "manifest-keys.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_key_as_the_sources_have_it(page: str) -> None:
    wanted = manifest_page.rewritten(page)
    if os.environ.get("FTNODE_UPDATE"):
        PAGE.write_text(wanted, encoding="utf-8")
    else:
        assert page == wanted, "protocol/manifest/sections.py says something else: FTNODE_UPDATE=1"


def test_the_formats_are_those_that_are_read(page: str) -> None:
    rows = dict(re.findall(r"(?m)^\| (\d+) \| (.*) \|$", page))
    assert [int(number) for number in rows] == list(FORMATS_READ)
    assert f"writes format {FORMAT} and" in page
    for section, kind in manifest_page.SECTIONS.items():
        for entry in fields(kind):
            by_key, by_section = (
                [number for number, keys in rows.items() if name in words(keys)]
                for name in (f"`{section}.{entry.name}`", f"`[{section}]`")
            )
            named = by_key or by_section
            assert named in ([manifest_page.since(entry)], []) and (named or manifest_page.since(entry) == "2")


def test_what_init_writes_otherwise_than_the_preset_is_listed(page: str) -> None:
    tiny = PRESETS["tiny"]
    made = with_checks(with_protection(with_snapshots(choose(tiny, None), None), None), None).manifest
    changed = {
        f"{section}.{entry.name}"
        for section, kind in manifest_page.SECTIONS.items()
        for entry in fields(kind)
        if getattr(getattr(made, section), entry.name) != getattr(getattr(tiny, section), entry.name)
    }
    said = page.partition("and writes others for")[2].partition("with the reasons")[0]
    assert {word.strip("`").rpartition(".")[2] for word in words(said)} == {key.rpartition(".")[2] for key in changed}


def words(row: str) -> set[str]:
    return set(re.findall(r"`[^`]+`", row))


def test_what_must_fit_together_is_what_the_reader_asks_for(page: str) -> None:
    listed = page.partition("## What must fit together")[2].partition("\n## ")[0]
    said = Counter(re.findall(r"(?m)^- `(\w+\.\w+)`:", listed))
    assert said == Counter(manifest_page.joint_conditions())
    assert said.total() > 10


@pytest.mark.parametrize(
    ("there", "wrong"),
    [
        ("| `stages` | whole number | 1 to 256 |", "| `stages` | whole number | 1 to 128 |"),
        ("| `lease_seconds` |", "| `lease` |"),
        ("Attention heads; dim / heads is even where head_dim is 0.", "Attention heads."),
        ("## `[liveness]`", "## `[life]`"),
    ],
)
def test_a_page_that_lags_behind_is_found(page: str, there: str, wrong: str) -> None:
    assert there in page
    changed = page.replace(there, wrong)
    assert manifest_page.rewritten(changed) != changed
