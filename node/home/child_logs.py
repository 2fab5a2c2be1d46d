"""What our child processes print goes to files that they append to. Each is kept within a size: when it is larger, its
end becomes FILE.1, in the place of what was there, and it begins anew."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

BYTES_MAX: Final = 1 << 23
"""Of one file, and of the one before it."""
LOOK_SECONDS: Final = 30.0
OF_A_NODE: Final = ("compute*.log", "p2pd.log", "directory.log")


def trim(path: Path, bytes_max: int = BYTES_MAX) -> bool:
    """Whether it was too large. What is printed between the copy and the cut is lost. Raises OSError."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= bytes_max:
            return False
        file.seek(size - bytes_max)
        try:
            path.with_name(f"{path.name}.1").write_bytes(file.read(bytes_max))
        finally:
            file.truncate(0)
        return True
    return False


async def keep_trimmed(folder: Path, *patterns: str) -> None:
    """Look at these files again and again, until cancelled."""
    import trio  # only nodes need it

    while True:
        await trio.to_thread.run_sync(trim_all, folder, patterns)
        await trio.sleep(LOOK_SECONDS)


def trim_all(folder: Path, patterns: Iterable[str], bytes_max: int = BYTES_MAX) -> None:
    """As `trim`; what cannot be looked at is logged."""
    try:
        paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
    except OSError as error:  # as for want of descriptors
        log.warning("logs in %s are not kept small: %s", folder, error.strerror)
        return
    for path in paths:
        try:
            trim(path, bytes_max)
        except OSError as error:
            log.warning("%s is not kept small: %s", path, error.strerror)
