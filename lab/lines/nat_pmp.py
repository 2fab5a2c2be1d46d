"""NAT-PMP (RFC 6886): what a router answers to a machine behind it that asks for the router's address, or that wants a
port of its own kept open.
"""

from __future__ import annotations

import struct
from typing import Final

from ftnode.lab.lines.headers import TCP, UDP
from ftnode.lab.lines.router import Router

PMP_PORT: Final = 5351
ADDRESS: Final = 0
PROTOCOLS: Final = {1: UDP, 2: TCP}
"""By opcode."""
ANSWER: Final = 128
OK: Final = 0
UNSUPPORTED: Final = 5
REQUEST: Final = struct.Struct("!BBHHHI")
"""Version, opcode, nothing, port inside, port wanted outside, seconds."""


def answer_to(request: bytes, router: Router, asker: int, now: float) -> bytes:
    """`asker`: the host inside that asks. Where another has the port that it wants, it is given one that is free. Empty
    for what is no request."""
    if len(request) < 2 or request[0] != 0:
        return b""
    opcode, seconds = request[1], int(now) & 0xFFFF
    if opcode == ADDRESS:
        return struct.pack("!BBHII", 0, ANSWER, OK, seconds, router.host)
    if opcode not in PROTOCOLS or len(request) < REQUEST.size:
        return struct.pack("!BBHI", 0, (ANSWER + opcode) & 0xFF, UNSUPPORTED, seconds)
    _, _, _, inside, wanted, lifetime = REQUEST.unpack_from(request)
    outside = router.keep_open(now, PROTOCOLS[opcode], (asker, inside), wanted, lifetime)
    return struct.pack("!BBHIHHI", 0, ANSWER + opcode, OK, seconds, inside, outside, lifetime)
