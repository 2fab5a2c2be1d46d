"""What a volunteer gives at most: memory of the device, bytes a second, processor time after everybody else.

`20Mbit` and `12GiB` as people write them, parsed once; nothing that comes from a peer can change a limit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from ftnode.node.home.size import size_text
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

NICE: Final = 10
"""Of the compute process by default: other programs of the owner come first, and idle cores are used all the same."""
RATE_MIN: Final = 8_000.0
"""Bytes per second (64 kbit): heartbeats and the directory of a small swarm need about half of it."""
BOUNDARY_SECONDS: Final = 10.0
"""A tensor between two stages must travel in this time: a third of what links wait for one, for three at once."""

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(bit|bps|b)(?:/s|ps)?", re.IGNORECASE)
_BYTE_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMG]?)(i?)B/s")
_LINE: Final = re.compile(r"(\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))?\s*([A-Za-z]+(?:/s)?)")
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B")
_SHARE: Final = re.compile(r"(\d*\.?\d+)\s*(%?)")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the device that computes: a share of it, or bytes; both 0: what is free."""

    share: float = 0.0
    amount: int = 0

    def bytes_of(self, total: int) -> int:
        """The most that may be used of a device with `total` bytes; 0: no limit."""
        return min(total, self.amount) if self.amount else int(self.share * total)


ALL_OF_IT: Final = Memory()


@dataclass(frozen=True, slots=True)
class Limits:
    """`up` and `down` in bytes per second, 0 for none. `nice` as of setpriority(2), of the compute process."""

    memory: Memory = ALL_OF_IT
    up: float = 0.0
    down: float = 0.0
    nice: int = NICE


NO_LIMITS: Final = Limits()


def parse_rate(text: str) -> float:
    """`20Mbit`, `800kbit`, `2.5MB/s`, `none` → bytes per second, 0 for none. Raises ValueError with what to write."""
    text = text.strip()
    if text.lower() == "none":
        return 0.0
    if found := _BYTE_RATE.fullmatch(text):
        number, prefix, binary = found.groups()
        rate = float(number) * _power(prefix, binary)
    elif (found := _RATE.fullmatch(text)) and found[3].lower() != "b":
        rate = float(found[1]) * _power(found[2]) / 8
    else:
        raise ValueError(f"{text!r} is no rate; write bits as 20Mbit or 800kbit, or bytes as 2.5MB/s, or none")
    if not math.isfinite(rate):
        raise ValueError(f"{text[:20]}… is more than any line carries; write none for no limit")
    if rate < RATE_MIN:
        raise ValueError(f"{text} is too little to take part at all; give at least 64kbit, or none for no limit")
    return rate


def parse_line(text: str) -> tuple[float, float | None]:
    """`20Mbit`, `20/100Mbit` → bytes a second up and, where it is said, down. Raises ValueError with what to write."""
    found = _LINE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no line; write 20/100Mbit, up and down, or 20Mbit")
    up, down, unit = found.groups()
    return parse_rate(up + unit), parse_rate(down + unit) if down else None


def line_text(up: float, down: float) -> str:
    """Bytes a second as people write lines: 20/100 Mbit/s."""
    up, down = (round(rate * 8 / 1e6, 2) for rate in (up, down))
    return f"{up:g}/{down:g} Mbit/s"


def parse_memory(text: str) -> Memory:
    """`0.7`, `70%`, `12GiB`, `512MB`, `none`. Raises ValueError with what to write."""
    text = text.strip()
    if text.lower() == "none":
        return ALL_OF_IT
    if found := _AMOUNT.fullmatch(text):
        amount = float(found[1]) * _power(found[2], found[3])
        if 1 <= amount < math.inf:
            return Memory(amount=int(amount))
    elif found := _SHARE.fullmatch(text):
        share = float(found[1]) / (100 if found[2] else 1)
        if 0 < share <= 1:
            return Memory(share=share)
    raise ValueError(f"{text[:20]!r} is neither a share of the memory, as 0.7 or 70%, nor an amount, as 12GiB or 800MB")


def _power(prefix: str, binary: str = "") -> float:
    return float((1024 if binary else 1000) ** _POWERS[prefix.lower()])


def check_limits(limits: Limits, manifest: Manifest) -> None:
    """Raises UserError (64) when the run cannot be taken part in with so little."""
    tensor = manifest.boundary_bytes.largest
    needed = tensor / BOUNDARY_SECONDS
    for option, rate in (("--up", limits.up), ("--down", limits.down)):
        if rate and rate < needed:
            raise UserError(
                f"{option} {rate_text(rate)} is too little for this run, where a tensor between two stages has "
                f"{tensor / 1e6:.1f} MB; give at least {rate_text(needed)}, or choose a smaller run"
            )


def rate_text(rate: float) -> str:
    """Bytes per second as people write lines: 20 Mbit/s."""
    bits = rate * 8
    for name, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:.3g} {name}"
    return f"{bits / 1e3:.3g} kbit/s"


def _amount_text(amount: int) -> str:
    return f"{amount / (1 << 30):.3g} GiB" if amount >= 1 << 30 else size_text(amount)


def limits_text(limits: Limits) -> str:
    """For the owner, one line; empty when nothing is limited but the priority."""
    memory = limits.memory
    parts = [
        f"memory {memory.share:.0%}" if memory.share else "",
        f"memory {_amount_text(memory.amount)}" if memory.amount else "",
        f"up {rate_text(limits.up)}" if limits.up else "",
        f"down {rate_text(limits.down)}" if limits.down else "",
    ]
    return ", ".join(part for part in parts if part)
