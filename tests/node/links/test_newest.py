"""The newest entries of a table are kept."""

from __future__ import annotations

from ftnode.node.links.newest import newest


def test_the_oldest_is_forgotten_and_who_is_put_in_again_is_the_newest() -> None:
    table: dict[str, int] = {}
    for number, key in enumerate("abc"):
        assert newest(table, key, number, 3) == number
    assert newest(table, "a", 7, 3) == 7
    assert list(table.items()) == [("b", 1), ("c", 2), ("a", 7)]
    newest(table, "d", 8, 3)
    assert list(table.items()) == [("c", 2), ("a", 7), ("d", 8)]
