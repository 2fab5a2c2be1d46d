"""Doors into the lab: what `--kill` means, and paths that must be there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runner import Seen

from ftnode.node.cli_lab import parse_kills
from ftnode.protocol.errors import UserError


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ((), None),
        (("none",), ()),
        (("2@150",), ((2, 150, False),)),
        (("3@9", "1@5", "2*@9"), ((1, 5, False), (2, 9, True), (3, 9, False))),
    ],
)
def test_kills(texts: tuple[str, ...], found: tuple[tuple[int, int, bool], ...] | None) -> None:
    assert parse_kills(texts, 4) == found


@pytest.mark.parametrize(
    "texts", [("2",), ("2@",), ("5@10",), ("2@0",), ("*@5",), ("none", "2@5"), ("two@5",), ("-1@5",)]
)
def test_kills_that_cannot_be(texts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        parse_kills(texts, 4)
    assert caught.value.exit_code == 64


@pytest.mark.parametrize("command", [("lab", "audit"), ("replay",)])
def test_a_path_that_is_not_there(command: tuple[str, ...], tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode(*command, tmp_path / "none").refused(66, "there is no")


def test_a_demo_with_a_preset_that_is_none(ftnode: Callable[..., Seen]) -> None:
    assert ftnode("demo", "--preset", "huge").refused(64, "no preset is called huge")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--quick", "--full"), "exclude"),
        (("--seeds", "1;2"), "not a list of numbers"),
        (("--model", "huge"), "no model is called huge"),
    ],
)
def test_a_recovery_lab_that_cannot_be(options: tuple[str, ...], words: str, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("lab", "recovery", *options).refused(64, words)
