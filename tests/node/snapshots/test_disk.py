"""Writing past the cache: every byte lands where it belongs, whatever the memory, the place and the file system."""

from __future__ import annotations

import errno
import mmap
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from ftnode.node.snapshots import disk as disk_module
from ftnode.node.snapshots.disk import SPARE_BYTES, Disk


def written(path: Path, pieces: list[tuple[int, memoryview]]) -> bytes:
    disk = Disk()
    descriptor = disk.create(path)
    try:
        for offset, piece in pieces:
            disk.write(descriptor, piece, offset)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    return path.read_bytes()


@pytest.mark.parametrize("shift", [0, 1, 8, 512])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, SPARE_BYTES + 3 * 4096 + 5])
@pytest.mark.parametrize("offset", [0, 8, 4096])
def test_every_byte_is_there(tmp_path: Path, shift: int, size: int, offset: int) -> None:
    memory = mmap.mmap(-1, size + shift + 1)
    content = random.Random(size).randbytes(size)
    memory[shift : shift + size] = content
    view = memoryview(memory)[shift : shift + size]
    head = memoryview(bytes(range(1, 9)) * (offset // 8))
    assert written(tmp_path / "file", [(0, head), (offset, view)]) == bytes(head) + content


def test_pieces_follow_each_other(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(3 * SPARE_BYTES + 77)
    memory = mmap.mmap(-1, len(content))
    memory[:] = content
    view = memoryview(memory)
    cuts = [0, 4096, 8192 + 13, SPARE_BYTES, 2 * SPARE_BYTES + 4096, len(content)]
    pieces = [(start, view[start:end]) for start, end in pairwise(cuts)]
    assert written(tmp_path / "file", pieces) == content


@pytest.mark.parametrize("refused_at", ["open", "write"])
def test_a_file_system_that_knows_no_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_at: str
) -> None:
    real_open, real_write = os.open, os.pwrite
    content = random.Random(2).randbytes(5 * 4096 + 3)

    def refusing_open(path: Path, flags: int, mode: int = 0o777) -> int:
        if refused_at == "open" and flags & disk_module.DIRECT:
            os.close(real_open(path, flags & ~disk_module.DIRECT, mode))
            raise OSError(errno.EINVAL, "of this test")
        return real_open(path, flags, mode)

    def refusing_write(descriptor: int, view: memoryview, offset: int) -> int:
        import fcntl

        if refused_at == "write" and fcntl.fcntl(descriptor, fcntl.F_GETFL) & disk_module.DIRECT:
            raise OSError(errno.EINVAL, "of this test")
        return real_write(descriptor, view, offset)

    monkeypatch.setattr(os, "open", refusing_open)
    monkeypatch.setattr(os, "pwrite", refusing_write)
    found = written(tmp_path / "file", [(0, memoryview(content)), (len(content), memoryview(b"end"))])
    assert found == content + b"end"


def test_a_folder_that_a_nas_has_put_into_a_draft_goes_with_it(tmp_path: Path) -> None:
    """And what a link leads to stays."""
    draft, other = tmp_path / "draft", tmp_path / "other"
    (draft / "@eaDir" / "index").mkdir(parents=True)
    (draft / "@eaDir" / "index" / "SYNO").write_bytes(b"x")
    (draft / "index").write_bytes(b"ours")
    other.mkdir()
    (other / "kept").write_bytes(b"theirs")
    (draft / "linked").symlink_to(other)
    Disk().remove(draft)
    assert not draft.exists() and (other / "kept").read_bytes() == b"theirs"
