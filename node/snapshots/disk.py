"""The file operations of snapshots, each one step of a write that may end between any two of them.

Everything that a snapshot does to a disk goes through `Disk`, so that tests can end the process, or fill the disk, at
each operation. Nothing here decides anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Final

from ftnode.node.home.files import give, give_folder, sync_folder
from ftnode.node.snapshots.format import BLOCK_BYTES

LOCK_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.02
DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
"""Past the page cache: half a second of a processor less for each GB, and the owner's programs keep their pages."""
FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Whoever owns the home may put links into it, which lead root anywhere."""
NOT_KNOWN: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF, errno.ENODEV)
"""What the system, or its C library, answers where a file system sets no room aside."""
SPARE_BYTES: Final = 1 << 20
READ_AHEAD: Final = 2
"""Pieces."""


class Disk:
    """All raise OSError."""

    home: Path | None = None
    """Whose owner gets what root makes below it."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home

    def make_folder(self, path: Path) -> None:
        """Which may be there already; the one above it is."""
        path.mkdir(mode=0o700, exist_ok=True)
        if self.home is not None and path != self.home:
            give_folder(path, self.home)

    def create(self, path: Path) -> int:
        """A new file's descriptor, for writing; past the system's cache where the file system knows how."""
        descriptor = _create(path)
        if self.home is not None:
            give(descriptor, self.home)
        return descriptor

    def reserve(self, descriptor: int, size: int) -> None:
        """A new file has its size from now on, and where the file system knows how, its room on the disk: others who
        look for room find it taken."""
        if not _allocate(descriptor, size):
            os.ftruncate(descriptor, size)

    def write(self, descriptor: int, content: memoryview | bytes, offset: int) -> None:
        """All of it, at that offset. Whole blocks go past the cache, from where they lie if that is a block's place."""
        view = memoryview(content)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if not flags & DIRECT:
            _write_all(descriptor, view, offset)
            return
        if offset % BLOCK_BYTES == 0:
            done = _write_blocks(descriptor, view[: len(view) - len(view) % BLOCK_BYTES], offset)
            view, offset = view[done:], offset + done
        if len(view):
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~DIRECT)
            _write_all(descriptor, view, offset)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)

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
        """A folder with its files, a link and not what it leads to, or nothing when it is gone."""
        with suppress(FileNotFoundError):
            if path.is_symlink():
                path.unlink()
                return
            descriptor = os.open(path, FOLDER_FLAGS)
            try:
                self.clear(descriptor)
            finally:
                os.close(descriptor)
            path.rmdir()

    def clear(self, folder: int) -> None:
        """An open folder loses what is in it. We make no folders there, but a NAS puts its own everywhere (@eaDir)."""
        for name in sorted(os.listdir(folder)):
            if _is_folder(name, folder):
                shutil.rmtree(name, dir_fd=folder)
            else:
                self.unlink(name, folder)

    def unlink(self, name: str, folder: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def free(self, path: Path) -> int:
        """Bytes that may be written below a folder."""
        return shutil.disk_usage(path).free


@contextmanager
def locked(folder: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """One process at a time, and one thread of it. Raises OSError when others hold it for longer than `seconds`, and
    for a link of another user where we are root."""
    if os.geteuid() == 0:
        for path in (folder.parent, folder):
            if path.is_symlink() and path.lstat().st_uid != 0:
                raise OSError(errno.ELOOP, f"root does not follow {path}, which is another user's link")
    with _alone_in(folder, seconds):
        yield


@contextmanager
def room_locked(folder: Path) -> Iterator[None]:
    """As `locked`, and with the run's folder the one above it: its runs share one limit and one disk. Always in this
    order."""
    with locked(folder), _alone_in(folder.parent, LOCK_SECONDS):
        yield


@contextmanager
def _alone_in(folder: Path, seconds: float) -> Iterator[None]:
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


def _is_folder(name: str, folder: int) -> bool:
    """Itself, and not what a link leads to. False when it is gone."""
    with suppress(FileNotFoundError):
        return S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    with suppress(FileNotFoundError):
        path.unlink()  # some make the file and then refuse
    return os.open(path, flags, 0o600)


def _allocate(descriptor: int, size: int) -> bool:
    """Whether the file system has set the room aside."""
    if not hasattr(os, "posix_fallocate") or not size:
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    # For a file that is appended to, glibc does not write to every block instead, which takes as long as the save.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in NOT_KNOWN:
            raise
        return False
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return True


def _write_blocks(descriptor: int, view: memoryview, offset: int) -> int:
    """How many bytes of whole blocks went past the cache; fewer where the system does not like them."""
    aligned = _is_aligned(view)
    spare = None if aligned else mmap.mmap(-1, SPARE_BYTES)
    done = 0
    try:
        while done < len(view):
            piece = view[done:] if aligned else view[done : done + SPARE_BYTES]
            if spare is not None:
                spare[: len(piece)] = piece
                with memoryview(spare) as whole, whole[: len(piece)] as copied:
                    written = os.pwrite(descriptor, copied, offset + done)
            else:
                written = os.pwrite(descriptor, piece, offset + done)
            done += written
            if written % BLOCK_BYTES:
                break  # the rest begins within a block
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return done


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while len(view):
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done


def _is_aligned(view: memoryview) -> bool:
    """Whether memory begins at a block's place; unknown, and so not, when it cannot be written."""
    if view.readonly or not len(view):
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) % BLOCK_BYTES == 0
