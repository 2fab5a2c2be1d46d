"""The private folder of a p2pd for its sockets, locked as long as its node lives."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from ftnode.protocol.words.errors import UserError

DIRECTORY_PREFIX = "ftnode-"
"""Of the private folder for the sockets, whose paths may have 107 bytes at most."""


def private_folder() -> tuple[Path, int]:
    """A new folder that only we can enter, locked as long as we live; those of dead nodes are removed on the way."""
    root = Path(tempfile.gettempdir())
    for stale in root.glob(f"{DIRECTORY_PREFIX}*/lock"):
        _remove_if_unlocked(stale)
    try:
        folder = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=root))
    except OSError as error:
        raise UserError(f"cannot create a folder in {root}: {error.strerror}; make room, or set TMPDIR", 73) from None
    if len(os.fsencode(folder)) > 90:
        folder.rmdir()
        raise UserError(f"{root} is too long for the path of a unix socket; set TMPDIR to a shorter one", 73)
    # The lock gets its name when it is already held, so that nobody takes the folder for a dead node's.
    lock = os.open(folder / "lock.new", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "lock.new").rename(folder / "lock")
    return folder, lock


def _remove_if_unlocked(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # another user's, or just removed
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path.parent, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
