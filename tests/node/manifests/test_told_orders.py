"""An order to roll back stays in the manifest, and is told to a node's owner once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftnode.node.manifests.told_orders import FOLDER, TEXTS_MAX, ToldOrders

ORDERED, NOTHING = "the run's author orders to roll back to step 5", "the order changes nothing"


def test_what_an_owner_was_told_of_an_order_is_not_said_at_the_next_start(tmp_path: Path) -> None:
    first = ToldOrders(tmp_path, "run", "me")
    assert [first.is_news(2, text) for text in (ORDERED, NOTHING, NOTHING)] == [True, True, False]
    later = ToldOrders(tmp_path, "run", "me")
    assert not later.is_news(2, ORDERED) and not later.is_news(2, NOTHING)
    assert later.is_news(2, "it goes on from step 4"), "something else became of it"
    assert later.is_news(3, ORDERED) and later.is_news(3, NOTHING), "another order"


def test_each_node_and_each_run_has_its_own(tmp_path: Path) -> None:
    assert ToldOrders(tmp_path, "run", "me").is_news(2, ORDERED)
    assert ToldOrders(tmp_path, "run", "other").is_news(2, ORDERED)
    assert ToldOrders(tmp_path, "another", "me").is_news(2, ORDERED)


@pytest.mark.parametrize("text", ["", "[" * 4000, "3", '{"order": 2}', '{"order": 2, "told": 3}', "\x00"])
def test_a_spoilt_note_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "run-me.json").write_text(text)
    told = ToldOrders(tmp_path, "run", "me")
    assert told.is_news(2, ORDERED) and not told.is_news(2, ORDERED)


def test_a_home_that_takes_no_note_is_no_reason_to_be_silent(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    told = ToldOrders(tmp_path, "run", "me")
    assert told.is_news(2, ORDERED) and told.is_news(2, ORDERED)


def test_the_note_stays_small(tmp_path: Path) -> None:
    told = ToldOrders(tmp_path, "run", "me")
    assert all(told.is_news(2, f"{number}") for number in range(TEXTS_MAX)) and not told.is_news(2, "0")
    assert told.is_news(2, "one more") and told.is_news(2, "one more")
