"""Small files of the home, whole or not at all. What root writes, as `sudo ftnode pause --home` does, belongs to
whoever the home belongs to: a service's own user could not read or replace it else."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def folder_of(home: Path, name: str = ".", make: bool = True) -> Iterator[int]:
    """A descriptor of `home/name`, which is made when it is not there, unless told otherwise. Raises OSError. Root does
    not follow a link there, by which a home's owner could have it write or delete anywhere."""
    path, root = home / name, os.geteuid() == 0
    if name != "." and make:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if root else 0))
    try:
        if make:
            give(folder, home)
        yield folder
    finally:
        os.close(folder)


def write_file(home: Path, folder: int, name: str, text: str, sync: bool = False) -> None:
    """Replace `name` in a folder of `folder_of`; with `sync` it outlasts a power cut. Raises OSError."""
    draft = f".{name}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            give(descriptor, home)
            file.write(text)
            file.flush()
            if sync:
                os.fsync(descriptor)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        if sync:
            sync_names(folder)
    except OSError:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def give_folder(path: Path, home: Path) -> None:
    """As `give`, for a folder below `home`. Raises OSError, also for a link where root would leave the home by it."""
    if not _is_anothers(home):
        return
    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path} is a link, and root follows none in a home of somebody else")
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        give(folder, home)
    finally:
        os.close(folder)


def give(descriptor: int, home: Path) -> None:
    """What is root's in somebody else's home becomes theirs."""
    if _is_anothers(home) and os.fstat(descriptor).st_uid == 0:
        owner = home.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _is_anothers(home: Path) -> bool:
    """We are root, and its owner is not."""
    return os.geteuid() == 0 and home.stat().st_uid != 0


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def sync_folder(folder: Path, sync: Callable[[int], None] = os.fsync) -> None:
    """Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(folder: int) -> None:
    """What is in an open folder under which name outlasts a power cut, where the file system knows how. Raises
    OSError."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
