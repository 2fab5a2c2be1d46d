"""What child processes print is kept within a size, though they hold the file open."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.home.child_logs import BYTES_MAX, LOOK_SECONDS, OF_A_NODE, keep_trimmed, trim, trim_all
from ftnode.node.home.log_folders import log_folders


def test_a_file_that_is_too_large_begins_anew_and_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "compute.log"
    assert not trim(path, 10), "nothing is there yet"
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(writer, b"0123456789")
    assert not trim(path, 10)
    os.write(writer, b"abcde")
    assert trim(path, 10)
    assert path.read_bytes() == b"" and (tmp_path / "compute.log.1").read_bytes() == b"56789abcde"
    os.write(writer, b"after")
    assert path.read_bytes() == b"after", "who writes goes on where the file ends"
    os.write(writer, b"and more")
    assert trim(path, 10) and (tmp_path / "compute.log.1").read_bytes() == b"erand more"
    os.close(writer)


def test_a_full_disk_has_it_begin_anew_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "p2pd.log"
    path.write_bytes(b"x" * 20)
    (tmp_path / "p2pd.log.1").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        trim(path, 10)
    assert path.read_bytes() == b""


def test_all_files_of_a_node_are_looked_at_and_no_other(tmp_path: Path) -> None:
    for name in ("compute.log", "compute-1.log", "p2pd.log", "directory.log", "node.log"):
        (tmp_path / name).write_bytes(b"x" * 20)
    (tmp_path / "compute-2.log").mkdir()
    trim_all(tmp_path, OF_A_NODE, 10)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir() if path.is_file()}
    emptied = {"compute.log": 0, "compute-1.log": 0, "p2pd.log": 0, "directory.log": 0}
    assert sizes == {**emptied, "node.log": 20, **{f"{name}.1": 10 for name in emptied}}
    trim_all(tmp_path / "nowhere", OF_A_NODE)


def test_a_node_without_a_descriptor_left_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(folder: Path, pattern: str) -> Iterator[Path]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(folder))

    monkeypatch.setattr(Path, "glob", without)
    trim_all(tmp_path, OF_A_NODE)


def test_they_are_looked_at_again_while_the_node_lives(tmp_path: Path) -> None:
    path = tmp_path / "p2pd.log"

    async def main() -> None:
        with trio.move_on_after(2.5 * LOOK_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_trimmed, tmp_path, *OF_A_NODE)
                await trio.testing.wait_all_tasks_blocked(0.02)
                path.write_bytes(b"")
                os.truncate(path, BYTES_MAX + 1)  # after the first look
        assert path.stat().st_size == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.3))


def test_they_and_those_before_them_are_logs_that_go_with_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-01234567" / "20260101-000001-1"
    folder.mkdir(parents=True)
    for name in ("compute.log", "compute.log.1", "compute-1.log", "compute-1.log.1", "p2pd.log.1", "directory.log.1"):
        (folder / name).write_bytes(b"x")
    assert log_folders(tmp_path)[0].only_logs
