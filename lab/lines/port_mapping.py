"""What a router answers to the machines behind it that want a port of its own kept open for them: NAT-PMP (RFC 6886),
the few bytes of it that ask for the router's address, or for a port.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from ftnode.lab.lines.headers import TCP, UDP

PMP_PORT: Final = 5351
ADDRESS: Final = 0
PROTOCOLS: Final = {1: UDP, 2: TCP}
"""By opcode."""
ANSWER: Final = 128
OK: Final = 0
UNSUPPORTED: Final = 5
REQUEST: Final = struct.Struct("!BBHHHI")
"""Version, opcode, nothing, port inside, port wanted outside, seconds."""


def answer_to(request: bytes, host: int, seconds: int, port_for: Callable[[int, int, int, int], int]) -> bytes:
    """`host`: the router's address outside; `seconds`: for which it has run; `port_for`: the port outside that it keeps
    open for (protocol, port inside, port wanted, seconds); 0 s end it. Empty for what is no request."""
    if len(request) < 2 or request[0] != 0:
        return b""
    opcode = request[1]
    if opcode == ADDRESS:
        return struct.pack("!BBHII", 0, ANSWER, OK, seconds, host)
    if opcode not in PROTOCOLS or len(request) < REQUEST.size:
        return struct.pack("!BBHI", 0, (ANSWER + opcode) & 0xFF, UNSUPPORTED, seconds)
    _, _, _, inside, wanted, lifetime = REQUEST.unpack_from(request)
    outside = port_for(PROTOCOLS[opcode], inside, wanted, lifetime)
    return struct.pack("!BBHIHHI", 0, ANSWER + opcode, OK, seconds, inside, outside, lifetime)
