"""Which device computes, of those that this machine has: the owner's words for devices, and the choice that is `auto`.

Nothing is asked of the machine here. compute/devices.py asks torch, gpu.py asks NVML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ftnode.protocol.words.errors import UserError

AUTO: Final = "auto"
GIGABYTE: Final = 1e9
DEVICES_MAX: Final = 16
CONTEXT_BYTES: Final = 1 << 30
"""What CUDA may take of a card besides torch's allocations: context, kernels and cuBLAS. 810 MiB were measured on an
H100; cards with fewer multiprocessors take less. A test measures it where there is a card."""
_NAME: Final = re.compile(r"cpu|cuda(:\d{1,2})?")


@dataclass(frozen=True, slots=True)
class Card:
    """A card that torch can compute on. `programs`: others that compute there, as far as anybody can say."""

    device: str
    name: str
    memory_free: int
    processors: int = 0
    """Multiprocessors: of two cards with as much room, that with more is faster."""
    programs: tuple[str, ...] = ()


def devices_of(words: str) -> tuple[str, ...]:
    """What --device names: `auto` alone, or devices. Raises UserError (64).

    A processor may be named several times, and then has so many compute processes. A card may not: it has one memory,
    and two processes would each count on it.
    """
    if words == AUTO:
        return (AUTO,)
    names = tuple("cuda:0" if name == "cuda" and "," in words else name for name in words.split(","))
    if not all(_NAME.fullmatch(name) for name in names):
        raise UserError(
            f"--device {words} is unknown; use auto, cpu, cuda or cuda:N, or several cards as cuda:0,cuda:1", 64
        )
    if len(names) > DEVICES_MAX:
        raise UserError(f"--device names {len(names)} devices; name {DEVICES_MAX} at most", 64)
    cards = [name for name in names if name != "cpu"]
    if cards and "cpu" in names:
        raise UserError(
            f"--device {words} mixes the processor with cards, which would wait for it at each step; name either", 64
        )
    if len({number_of(name) for name in cards}) < len(cards):
        raise UserError(f"--device {words} names a card twice; name each once", 64)
    return names


def number_of(device: str) -> int:
    """CUDA's number of a card."""
    return int(device.partition(":")[2] or 0)


def choose(cards: Sequence[Card], needed: int, shared: bool = False, blind: str = "") -> tuple[str, str]:
    """The device, and in one line which one and why: the free card with most free memory, else the processor.

    `needed`: bytes of one stage. `shared`: the owner shares cards with other programs. `blind`: why nobody can say
    which programs compute where. Memory counts in whole GB, since no two cards have the same to the byte.
    """
    free: list[Card] = []
    taken: list[str] = []
    for card in cards:
        if card.programs and not shared:
            taken.append(f"{card.device} is used by {' and '.join(card.programs)}")
        elif card.memory_free < needed:
            taken.append(f"{card.device} has {_gigabytes(card)} free, and a stage takes {needed / GIGABYTE:.1f}")
        else:
            free.append(card)
    doubt = [f"nobody can say who else uses it: {blind}"] if blind and free else []
    if not free:
        return "cpu", "; ".join([f"computes on the CPU: {taken[0]}", *taken[1:]])
    best = max(free, key=lambda card: (int(card.memory_free / GIGABYTE), card.processors, -number_of(card.device)))
    others = [card.device for card in free if card is not best]
    more = []
    if others:
        every = ",".join(card.device for card in free)
        more = [f"{' and '.join(others)} {'is' if len(others) == 1 else 'are'} free, too: --device {every} takes all"]
    said = f"computes on {best.device} ({best.name}, {_gigabytes(best)} free)"
    return best.device, "; ".join([said, *taken, *more, *doubt])


def _gigabytes(card: Card) -> str:
    return f"{card.memory_free / GIGABYTE:.1f} GB"
