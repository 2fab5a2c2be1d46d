"""The folders of logs below a root, one for each start of a node: ROOT/RUN/DATE-TIME-PROCESS. Together they stay within
a size: when a node starts, the oldest go. A folder is in use while its node holds the folder's lock, and one in which
somebody keeps something else besides logs stays."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOG_NAME: Final = "node.log"
START: Final = re.compile(r"\d{8}-\d{6}-\d{1,10}")
LOGS: Final = re.compile(r"(node|p2pd|compute(-\d+)?|directory)\.log(\.\d+)?|(trace|metrics)(-\d+)?\.jsonl(\.\d+)?")
OWN_BYTES: Final = (256 + 2 * 64 + 2 * 16 + 3 * 2 * 8) << 20
"""What one start writes at most: trace, node.log, metrics.jsonl and the logs of three children at their bounds."""
FOLDERS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class LogFolder:
    path: Path
    bytes: int
    written: float
    """When something was last written there, seconds since 1970 UTC."""
    only_logs: bool


def log_folders(root: Path) -> list[LogFolder]:
    """Those below `root`, written last first. What cannot be looked at, and links, are left out. Raises OSError when
    `root` itself is there and cannot be looked at."""
    found = []
    with suppress(FileNotFoundError):
        for path in list(_starts(root))[:FOLDERS_MAX]:
            with suppress(OSError):
                files = [(entry, entry.stat(follow_symlinks=False)) for entry in os.scandir(path)]
                whole = all(entry.is_file(follow_symlinks=False) and LOGS.fullmatch(entry.name) for entry, _ in files)
                size = sum(stat.st_size for _, stat in files)
                written = max((stat.st_mtime for _, stat in files), default=path.stat().st_mtime)
                found.append(LogFolder(path, size, written, whole))
    return sorted(found, key=lambda folder: folder.written, reverse=True)


def too_many(folders: Sequence[LogFolder], bytes_max: int) -> list[LogFolder]:
    """Of folders, written last first, those that go so that the rest have at most `bytes_max` bytes together."""
    kept, going = 0, []
    for folder in folders:
        kept += folder.bytes
        if kept > bytes_max and folder.only_logs:
            kept -= folder.bytes
            going.append(folder)
    return going


def hold(folder: Path) -> int:
    """Lock a folder of logs as long as the returned descriptor is open. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def clear(root: Path, bytes_max: int) -> list[Path]:
    """Remove the oldest folders, so that what is left and one more start fit into `bytes_max`; which went. A folder
    that cannot be removed stays."""
    gone = []
    for folder in too_many(log_folders(root), max(0, bytes_max - OWN_BYTES)):
        with suppress(OSError):
            descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder.path)
                gone.append(folder.path)
                folder.path.parent.rmdir()  # the last one of its run
            finally:
                os.close(descriptor)
    return gone


def _starts(root: Path) -> Iterator[Path]:
    for run in os.scandir(root):
        if run.is_dir(follow_symlinks=False):
            with suppress(OSError):
                starts = [entry for entry in os.scandir(run.path) if START.fullmatch(entry.name)]
                yield from (Path(entry.path) for entry in starts if entry.is_dir(follow_symlinks=False))
