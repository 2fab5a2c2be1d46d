"""Small files of the home, whole or not at all. What root writes, as `sudo ftnode pause --home` does, belongs to
whoever the home belongs to: a service's own user could not read or replace it else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
            _give(folder, home)
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
            _give(descriptor, home)
            file.write(text)
            file.flush()
            if sync:
                os.fsync(descriptor)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def _give(descriptor: int, home: Path) -> None:
    """What is root's in somebody else's home becomes theirs."""
    if os.geteuid() == 0:
        owner = home.stat()
        if owner.st_uid != 0 and os.fstat(descriptor).st_uid == 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
