"""Memory of the host that we may take: what Linux calls available, or less where a control group has a limit.

/proc/meminfo tells of the whole machine, also in a container, and in a service with MemoryMax. Who takes more than its
group has is killed. So the group's own files are read, and those of the groups around it (cgroups(7)).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
GROUPS: Final = Path("/sys/fs/cgroup")
SECOND: Final = ("memory.max", "memory.current", "inactive_file")
FIRST: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Of the two versions of control groups: limit, use, and in memory.stat the part of that which is given back when
somebody wants it."""


def available(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Bytes that programs may still take; None where the system does not say."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
    return min([free, *(max(0, limit - used) for limit, used in _limits(proc, groups))])


def whole(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Bytes of all of it, for a share of that."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _limits(proc, groups))])


def _limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each group that we are in and that has both. A container sees its own at the top, whatever its
    path says."""
    for root, path, names in _ours(proc, groups):
        for folder in (root / path, *(root / path).parents):
            if folder.is_relative_to(root):
                with suppress(OSError, ValueError, StopIteration):  # there is none, or it says "max"
                    limit, used = (int((folder / name).read_text()) for name in names[:2])
                    stat = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    yield limit, used - next(int(count) for name, count in stat if name == names[2])


def _ours(proc: Path, groups: Path) -> Iterator[tuple[Path, str, tuple[str, str, str]]]:
    """Where the groups of each version lie, our path among them, and the names of their files."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if number == "0":
            yield groups, path.lstrip("/"), SECOND
        elif "memory" in controllers.split(","):
            yield groups / "memory", path.lstrip("/"), FIRST
