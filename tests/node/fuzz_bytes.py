"""Bytes of hostile peers against the reader of every protocol, for as long as one likes:

    python -m tests.node.fuzz_bytes --seconds 600 --seed 7      a night; what reached a new place is kept
    python -m tests.node.fuzz_bytes --only step --seconds 60

Whatever makes a reader refuse in a place that nothing had reached before is mangled further, like what is valid. Places
are told by the lines that the refusal went through. What reached them first is kept in hostile_seeds.txt, a line each,
and is read again in each run of the tests. A reader fails that raises anything but a PeerError, takes a second, or
makes an error text as long as a stranger likes.

test_any_bytes.py has hypothesis change the same bytes, what is kept here among them, and make small what fails. It does
not know which places a reader was in, so that it gets less far in the same time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final

import msgpack

from ftnode.node.links import dead_connections, p2pd_messages, punch, relay_service, side_messages
from ftnode.protocol.wire.decoder import decode
from ftnode.protocol.words.codec import tagged
from ftnode.protocol.words.errors import PeerError
from tests.node.hostile_bytes import BOMBS, hostile
from tests.node.test_foreign_bytes import PEER, READERS, Read, over_a_stream

SEEDS: Final = Path(__file__).with_name("hostile_seeds.txt")
ROUND: Final = 24
SLOW_SECONDS: Final = 1.0
"""Of processor time, for one reading: a bomb has a megabyte at most."""
TEXT_MAX: Final = 1000
SEED_BYTES_MAX: Final = 4000
"""A longer one is not kept; bombs are read anyway."""
POOL_MAX: Final = 400


def as_the_handler_does(read: Read) -> Read:
    """p2pd's messages raise ValueError, of which the handler of their streams makes a PeerError."""

    def heard(data: bytes) -> Any:
        try:
            return read(data)
        except ValueError as error:
            raise PeerError(str(error)) from None

    return heard


def side(kinds: dict[str, type], bytes_max: int) -> Read:
    return over_a_stream(lambda stream: side_messages.hear(stream, kinds, bytes_max))


def packed(*said: object) -> tuple[bytes, ...]:
    return tuple(msgpack.packb(tagged(one)) for one in said)


HOP: Final = tuple(
    framed[1:] for framed in (p2pd_messages.reserve(), p2pd_messages.circuit(b"peer"), p2pd_messages.relay_status(100))
)
"""Without the length before them."""
TARGETS: Final[dict[str, tuple[Read, tuple[bytes, ...]]]] = READERS | {
    "punch": (
        side(punch.KINDS, punch.MESSAGE_BYTES_MAX),
        packed(punch.Ask(PEER), punch.Wanted(PEER, "/ip4/127.0.0.1/tcp/1"), punch.Opened(""), punch.Turn(),
               punch.No("no")),
    ),
    "relays": (
        side(relay_service.KINDS, relay_service.OFFER_BYTES_MAX),
        packed(relay_service.Asked(), relay_service.Offered("", 3, 1e6, ((PEER, 5.0),))),
    ),
    "hop": (as_the_handler_does(p2pd_messages.read_asked_of_relay), HOP),
    "stop": (as_the_handler_does(p2pd_messages.read_stop_status), HOP),
    "seen": (
        lambda data: decode(data, dead_connections.PLACE_LIMITS), (msgpack.packb("/ip4/192.0.2.1/tcp/4001"),)
    ),
}  # fmt: skip
PROTOCOLS: Final[dict[str, tuple[str, ...]]] = {
    "/ftnode/step": ("step", "greeting"), "/ftnode/state": ("state",), "/ftnode/reduce": ("reduction",),
    "/ftnode/data": ("shards",), "/ftnode/export": ("export, asked", "export, answered"), "/ftnode/knock": ("knock",),
    "/ftnode/who": ("who",), "/ftnode/status": ("status", "watcher"),
    "/ftnode/history": ("history", "history, asked"), "/ftnode/manifest": ("manifest", "refusal"),
    "/ftnode/punch": ("punch",), "/ftnode/relays": ("relays",), "/ftnode/seen": ("seen",),
    "/libp2p/circuit/relay": ("hop", "stop"), "the directory": ("record", "stored record", "wrapped record", "subkey",
                                                               "dictionary"),
}  # fmt: skip
"""Of a node, without their versions, and the readers of each. /ipfs/ping carries bytes that nobody reads."""


@dataclass
class Fuzzed:
    """Of one reader. `places`: by where it was refused, what did that first."""

    samples: int = 0
    places: dict[str, bytes] = field(default_factory=dict)
    failures: list[tuple[str, bytes]] = field(default_factory=list)


def fuzz(name: str, seconds: float, seed: int, kept: Iterable[bytes] = ()) -> Fuzzed:
    """`seconds`: of processor time, at most; what is `kept` is read in any case."""
    read, valid = TARGETS[name]
    chance, found, began = Random(f"{name} {seed}"), Fuzzed(), time.process_time()
    pool = [*valid]
    for data in (*BOMBS, *valid, *kept):
        _read(found, read, data, pool)
    while time.process_time() < began + seconds:
        for data in islice(hostile(pool, chance, ROUND), len(BOMBS) + len(pool), None):
            _read(found, read, data, pool)
    return found


def _read(found: Fuzzed, read: Read, data: bytes, pool: list[bytes]) -> None:
    found.samples += 1
    began = time.process_time()
    try:
        read(data)
    except PeerError as error:
        if len(str(error)) >= TEXT_MAX:
            found.failures.append((f"an error text of {len(str(error))} characters", data))
        place = place_of(error.__traceback__)
        if place not in found.places:
            found.places[place] = data
            if data not in BOMBS and len(data) <= SEED_BYTES_MAX and len(pool) < POOL_MAX:
                pool.append(data)
    except Exception as error:  # noqa: BLE001 - what it looks for
        found.failures.append((f"{type(error).__name__}: {error}", data))
    if time.process_time() > began + SLOW_SECONDS:
        found.failures.append((f"{time.process_time() - began:.1f} s", data))


def place_of(trace: TracebackType | None) -> str:
    """The lines of ours that an error went through."""
    lines = []
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if "/tests/" not in path and "site-packages" not in path:
            lines.append(f"{Path(path).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " ".join(lines)


def seeds() -> dict[str, list[bytes]]:
    """By reader."""
    found: dict[str, list[bytes]] = {}
    for line in SEEDS.read_text().splitlines() if SEEDS.exists() else ():
        name, _, data = line.rpartition("\t")
        found.setdefault(name, []).append(bytes.fromhex(data))
    return found


def keep(found: dict[str, Fuzzed]) -> None:
    """What reached a place first, and what was kept before for readers that were not looked at."""
    left = {name: data for name, data in seeds().items() if name not in found}
    mine = {
        name: sorted({data for data in each.places.values() if 0 < len(data) <= SEED_BYTES_MAX} - {*BOMBS})
        for name, each in found.items()
    }
    lines = [f"{name}\t{data.hex()}" for name, all_of in sorted((left | mine).items()) for data in all_of]
    SEEDS.write_text("\n".join(lines) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when a reader has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time, all readers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(TARGETS), action="append")
    asked = parser.parse_args(arguments)
    names, kept = asked.only or [*TARGETS], seeds()
    found = {name: fuzz(name, asked.seconds / len(names), asked.seed, kept.get(name, ())) for name in names}
    keep(found)
    for name, each in found.items():
        print(f"{name:<20} {each.samples:>9} samples, {len(each.places):>3} places, {len(each.failures)} failures")
        for why, data in each.failures[:5]:
            print(f"    {why}: {data[:200].hex()}")
    return int(any(each.failures for each in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
