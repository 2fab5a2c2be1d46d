"""Which tests a change names (tests/quick.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.quick import ALWAYS, changed_files, named_by

FILES = (
    "tests/conftest.py", "tests/test_tidy.py", "tests/test_errors.py", "tests/protocol/leader/test_losses.py",
    "tests/node/test_ports.py", "tests/node/compute/test_client.py", "tests/node/compute/computing.py",
    "tests/node/links/test_link.py", "tests/lab/test_audit.py", "tests/lab/test_audit_copies.py",
    "tests/lab/test_replay.py", "tests/sim/world.py", "tests/sim/test_pauses.py", "tests/swarm/test_losses.py",
)  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("node/compute/client.py", ["tests/node/compute"]),
        ("node/compute/deeper/file.py", ["tests/node/compute"]),
        ("node/ports.py", ["tests/node/test_ports.py"]),
        ("node/new_room/file.py", ["tests/node/test_ports.py"]),
        ("lab/audit.py", ["tests/lab/test_audit.py", "tests/lab/test_audit_copies.py"]),
        ("lab/swarm.py", ["tests/lab/test_audit.py", "tests/lab/test_audit_copies.py", "tests/lab/test_replay.py"]),
        ("protocol/leader/losses.py", []),
        ("tests/node/links/test_link.py", ["tests/node/links/test_link.py"]),
        ("tests/node/links/test_deleted.py", []),
        ("tests/node/compute/computing.py", ["tests/node/compute"]),
        ("tests/sim/world.py", ["tests/sim"]),
        ("tests/conftest.py", ["tests/test_errors.py"]),
        ("docs/protocol.md", ["tests/test_errors.py"]),
        ("Makefile", ["tests/test_errors.py"]),
        ("tests/swarm/test_losses.py", []),
        ("tests/swarm/conftest.py", []),
    ],
)
def test_a_change_names_the_named_by_its_room(tree: Path, changed: str, named: list[str]) -> None:
    assert named_by([changed], tree) == sorted([*ALWAYS, *named])


def test_a_file_is_not_named_beside_its_folder(tree: Path) -> None:
    changed = ["tests/node/compute/test_client.py", "node/compute/client.py", "protocol/step/step.py"]
    assert named_by(changed, tree) == ["tests/node/compute", "tests/protocol", "tests/test_tidy.py"]


def test_what_differs_from_main_is_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)

    git("init", "--initial-branch", "main")
    for name in ("same", "committed", "edited"):
        write(name, "as it was")
    git("add", ".")
    git("commit", "-m", "first")
    assert changed_files(tmp_path) == []
    git("checkout", "-b", "branch")
    write("committed", "changed")
    git("commit", "-a", "-m", "second")
    write("edited", "changed")
    write("new", "file")
    assert changed_files(tmp_path) == ["committed", "edited", "new"]
