"""The lab's commands: what `--kill` means, and paths that must be there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.lab.commands.demo import parse_kills
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen, runner


@pytest.fixture
def ftnode(capsys: pytest.CaptureFixture[str]) -> Callable[..., Seen]:
    return runner(capsys)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ((), None),
        (("none",), ()),
        (("none", "none"), ()),
        (("2@150",), ((2, 150, False),)),
        (("0@5",), ((0, 5, False),)),
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
        (("--full", "--long"), "exclude"),
        (("--long", "--model", "tiny"), "a model of its own"),
        (("--seeds", "1;2"), "not a list of numbers"),
        (("--model", "huge"), "no model is called huge"),
    ],
)
def test_a_recovery_lab_that_cannot_be(options: tuple[str, ...], words: str, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("lab", "recovery", *options).refused(64, words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "gpu"), "use cpu, cuda or cuda:N"),
        (("--kill", "none", "--kill", "2@5"), "stands alone"),
        (("--stages", "3", "--swap"), "swapped routes need 4"),
    ],
)
def test_a_demo_that_cannot_be(
    options: tuple[str, ...], words: str, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    assert ftnode("demo", *options, "--report", tmp_path / "new").refused(64, words)
    assert not (tmp_path / "new").exists()


def test_a_demo_with_too_short_a_text(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    (tmp_path / "short.txt").write_text("hi")
    assert ftnode("demo", "--data", tmp_path / "short.txt").refused(65, "fewer than one sequence")


def test_a_recovery_lab_on_a_device_that_torch_does_not_find(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("lab", "recovery", "--device", "cuda:99", "--out", tmp_path).refused(69, "CUDA devices here")


@pytest.mark.parametrize("command", ["scaling", "elastic", "reduction", "recovery"])
def test_a_lab_looks_at_its_folder_first(command: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    (tmp_path / "file").write_text("")
    assert ftnode("lab", command, "--out", tmp_path / "file").refused(73, "cannot write to", "choose another --out")


@pytest.mark.parametrize(
    ("command", "option"), [("lab scaling", "--out"), ("lab elastic", "--out"), ("demo", "--report")]
)
def test_nothing_is_written_over(command: str, option: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    (tmp_path / "file").write_text("")
    assert ftnode(*command.split(), option, tmp_path).refused(73, "is not empty", option)
