"""What the kernel tells of a process: its time, and its memory."""

from __future__ import annotations

import os
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """User and system time of all its threads. Raises OSError when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int, *names: str) -> int:
    """These lines of /proc/PID/status together, in bytes; 0 where there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    wanted = tuple(f"{name}:" for name in names)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))
