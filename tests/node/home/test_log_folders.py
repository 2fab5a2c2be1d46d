"""Logs of all starts stay within a size together, and nothing but old logs goes."""

from __future__ import annotations

import os
from pathlib import Path

from ftnode.node.home.log_folders import OWN_BYTES, LogFolder, clear, hold, log_folders, too_many

MEGABYTE = 1 << 20


def start(root: Path, number: int, size: int = MEGABYTE, run: str = "tiny-01234567") -> Path:
    """The folder of an earlier start; the higher its number, the newer."""
    folder = root / run / f"20260101-0000{number:02}-{number}"
    folder.mkdir(parents=True)
    for name in ("node.log", "trace.jsonl"):
        (folder / name).write_bytes(bytes(size // 2))
        os.utime(folder / name, (1_000_000 + number, 1_000_000 + number))
    return folder


def test_the_oldest_go(tmp_path: Path) -> None:
    folders = [start(tmp_path, number, run=f"run-{number % 2}") for number in range(1, 5)]
    assert [folder.path for folder in log_folders(tmp_path)] == folders[::-1]
    assert clear(tmp_path, OWN_BYTES + 2 * MEGABYTE) == [folders[1], folders[0]]
    assert [folder.exists() for folder in folders] == [False, False, True, True]
    assert clear(tmp_path, 1) == [folders[3], folders[2]] and list(tmp_path.iterdir()) == []
    assert clear(tmp_path / "nowhere", 1) == []


def test_what_is_in_use_or_has_something_else_stays(tmp_path: Path) -> None:
    used, dumped, linked, odd = (start(tmp_path, number) for number in range(1, 5))
    (dumped / "last-1-400.weights").write_bytes(b"weights that somebody asked for")
    (linked / "trace-2.jsonl").symlink_to(tmp_path / "elsewhere")
    mine = odd.rename(odd.with_name("notes"))
    (tmp_path / "link").symlink_to(dumped.parent)
    descriptor = hold(used)
    assert clear(tmp_path, 1) == [] and all(folder.exists() for folder in (used, dumped, linked, mine))
    os.close(descriptor)
    assert clear(tmp_path, 1) == [used]


def test_a_newer_folder_that_is_large_makes_room_for_older_small_ones() -> None:
    folders = [LogFolder(Path(name), size, 0.0, True) for name, size in (("a", 5), ("b", 9), ("c", 4))]
    assert [folder.path.name for folder in too_many(folders, 10)] == ["b"]
    assert too_many(folders, 18) == []
