"""Which tensors travelled in a step, and when: told by the traces of those who made them and of those who got them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftnode.lab.traces.story import Told
from ftnode.node.driver.trace import TraceTail

Hop = tuple[int, int, bool]
"""(microbatch, the visit that it is for, is it forward) of a step."""


@dataclass(frozen=True, slots=True)
class Travel:
    """One tensor from the node that made it to the node that got it first; times are those of the traces."""

    step: int
    sender: str
    receiver: str
    made: float
    got: float
    forward: bool


def read_events(traces: dict[str, Path]) -> list[Told]:
    """All events of these nodes in the order of their times."""
    told = [Told(name, record) for name, path in traces.items() for record in TraceTail(path, events=True).read()]
    return sorted((one for one in told if one.record["k"] == "event"), key=lambda one: one.time)


def travels(events: Iterable[Told]) -> list[Travel]:
    """Tensors of training that went from one node to another; what was never got is left out. The head makes the first
    input of a microbatch when its step begins."""
    made: dict[tuple[int, Hop], Told] = {}
    got: dict[tuple[int, Hop], Told] = {}
    for told in events:
        for step, hop in _made(told.record["e"]):
            made.setdefault((step, hop), told)
        for step, hop in _got(told.record["e"]):
            got.setdefault((step, hop), told)
    both = sorted(made.keys() & got.keys())
    return [
        Travel(key[0], made[key].node, got[key].node, made[key].time, got[key].time, key[1][2])
        for key in both
        if made[key].node != got[key].node
    ]


def came_twice(events: Iterable[Told]) -> int:
    """How many tensors a node got that it had."""
    arrived = [(told.node, step, hop) for told in events for step, hop in _got(told.record["e"])]
    return len(arrived) - len(set(arrived))


def word_seconds(events: Iterable[Told]) -> list[float]:
    """Of each tensor, from its arrival until its sender has word of that: how long control frames take."""
    got: dict[tuple[int, Hop], float] = {}
    word: dict[tuple[int, Hop], float] = {}
    for told in events:
        for key in _got(told.record["e"]):
            got.setdefault(key, told.time)
        for key in _acknowledged(told.record["e"]):
            word.setdefault(key, told.time)
    return [word[key] - got[key] for key in got.keys() & word.keys()]


def _made(event: list[Any]) -> Iterator[tuple[int, Hop]]:
    """A task that is done has made the tensor for the visit after its last."""
    if event[0] != "Done" or event[1][0] not in ("Forward", "Backward"):
        return
    kind, _, step, _, microbatch, visit, *_, onward = event[1]
    forward, made = kind == "Forward", 1 + len(onward)
    yield step, (microbatch, visit + made if forward else visit - made, forward)


def _got(event: list[Any]) -> Iterator[tuple[int, Hop]]:
    if event[0] != "Received" or event[2][0] != "Boundary":
        return
    _, _, _, step, _, microbatch, visit, direction, *_ = event[2]
    yield step, (microbatch, visit, direction == "forward")


def _acknowledged(event: list[Any]) -> Iterator[tuple[int, Hop]]:
    if event[0] != "Received" or event[2][0] != "Stored":
        return
    _, _, step, _, microbatch, visit, direction, *_ = event[2]
    yield step, (microbatch, visit, direction == "forward")
