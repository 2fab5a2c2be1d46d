"""What is told of pairs behind routers, and which of them could have had a direct connection."""

from __future__ import annotations

import pytest

from ftnode.lab.lines.router import KINDS
from ftnode.lab.routers.matrix import Asked, Cell, can_be_opened, figures_of, table

ASKED = Asked(("port-restricted", "symmetric"), (2.5e6, 12.5e6), (2.5e6, 2.5e6), 0.03)


def cell(dials: str, dialled: str, way: str, seconds: float = 0.5) -> Cell:
    return Cell(dials, dialled, way, seconds, 1.5e6, "")


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_opened(kind: str) -> None:
    assert can_be_opened(kind, "none") and can_be_opened("address-restricted", kind)
    assert can_be_opened("port-restricted", kind) == can_be_opened(kind, "two") == (kind != "symmetric")
    assert can_be_opened("symmetric", kind) == (kind in ("none", "full-cone", "address-restricted"))


def test_a_relayed_pair_that_could_be_direct_is_missed() -> None:
    cells = [
        cell("port-restricted", "port-restricted", "relayed", 3.0),
        cell("port-restricted", "symmetric", "relayed"),
        cell("symmetric", "port-restricted", "none"),
        cell("symmetric", "symmetric", "relayed"),
    ]
    figures = figures_of(ASKED, cells)
    assert figures["missed"] == [["port-restricted", "port-restricted"]]
    assert figures["punched_seconds"] is None
    assert "RFC 5128 allows one: port-restricted to port-restricted" in table(figures)


def test_the_table_says_ways_seconds_and_rates() -> None:
    cells = [
        cell("port-restricted", "port-restricted", "punched", 0.25),
        cell("port-restricted", "symmetric", "relayed", 3.5),
        cell("symmetric", "port-restricted", "punched", 0.75),
        cell("symmetric", "symmetric", "direct"),
    ]
    figures = figures_of(ASKED, cells)
    assert figures["ways"] == {"direct": 1, "punched": 2, "relayed": 1, "none": 0}
    assert (figures["punched_seconds"], figures["missed"]) == (0.5, [])
    text = table(figures)
    assert "punched 0.25 s 1.50" in text and "relayed 3.50 s 1.50" in text
    assert text.endswith("a punch takes 0.50 s (median)")
