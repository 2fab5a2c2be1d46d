"""The file operations of snapshots, each one step of a write that may end between any two of them.

Everything that a snapshot does to a disk goes through `Disk`, so that tests can end the process, or fill the disk, at
each operation. Nothing here decides anything.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ftnode.node.checkpoint import sync_folder

LOCK_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.02
READ_AHEAD: Final = 2
"""Pieces."""


class Disk:
    """All raise OSError."""

    def make_folder(self, path: Path) -> None:
        """Which may be there already; the one above it is."""
        path.mkdir(mode=0o700, exist_ok=True)

    def create(self, path: Path) -> int:
        """A new file's descriptor, for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, content: memoryview | bytes, offset: int) -> None:
        """All of it, at that offset."""
        view = memoryview(content)
        while len(view):
            done = os.pwrite(descriptor, view, offset)
            view, offset = view[done:], offset + done

    def settle(self, descriptor: int, offset: int, length: int) -> None:
        """Let the system begin to write what lies there, and keep no room for it in its cache: the owner's other
        programs need that more."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        sync_folder(path)

    def rename(self, path: Path, name: Path) -> None:
        """Onto nothing: raises OSError when there is a folder of that name with something in it."""
        path.rename(name)

    def remove(self, path: Path) -> None:
        """A folder with its files, or nothing when it is gone."""
        with suppress(FileNotFoundError):
            for file in sorted(path.iterdir()):
                self.unlink(file)
            path.rmdir()

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def free(self, path: Path) -> int:
        """Bytes that may be written below a folder."""
        return shutil.disk_usage(path).free


@contextmanager
def locked(folder: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """One process at a time, and one thread of it. Raises OSError when others hold it for longer than `seconds`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + seconds
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has been at work in {folder} for {seconds:.0f} s")
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Whether the open folder is ours now; until it is closed, or our process ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_ahead(descriptor: int, offset: int, length: int) -> None:
    """Let the system fetch the pieces behind this one, and let go of the one before: what is read once needs no room in
    its cache."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset + length, READ_AHEAD * length, os.POSIX_FADV_WILLNEED)
        if offset > length:
            os.posix_fadvise(descriptor, 0, offset, os.POSIX_FADV_DONTNEED)
