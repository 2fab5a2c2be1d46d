"""Whether the other end of a TCP connection still acknowledges what it is sent, as Linux's /proc/net/tcp has it.

On a line that is full an answer may take seconds, and acknowledgements come all the while. Where nothing arrives any
more the kernel sends again and again, and counts how often it has since the last acknowledgement.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ftnode.node.links.hosts import plain

TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
ESTABLISHED: Final = "01"
RESENT_MIN: Final = 2
"""One may be due to a loss, or to a line that has just become slower."""


def acknowledged(host: str, port: int) -> bool:
    """Whether a connection of this machine to that endpoint works, as far as TCP can tell. False also when there is no
    such table."""
    lines: list[str] = []
    for table in TABLES:
        try:
            lines += table.read_text(encoding="ascii").splitlines()[1:]
        except (OSError, UnicodeDecodeError):
            continue
    return any(count < RESENT_MIN for count in resent(lines, host, port))


def resent(lines: Iterable[str], host: str, port: int) -> list[int]:
    """Of each established connection to the endpoint, how often something was sent again since the last
    acknowledgement. `lines`: of the tables, without their heads (proc(5))."""
    wanted = plain(ipaddress.ip_address(host))
    found = []
    for line in lines:
        fields = line.split()
        address, _, number = fields[2].partition(":")
        if fields[3] == ESTABLISHED and int(number, 16) == port and plain(_host(address)) == wanted:
            found.append(int(fields[6], 16))
    return found


def _host(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Words of 32 bits, each in the order of this machine's bytes: all that Linux and torch run on is little-endian."""
    data = bytes.fromhex(text)
    return ipaddress.ip_address(b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4)))
