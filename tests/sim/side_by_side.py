"""The same for many seeds, in one process or several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Seed = TypeVar("Seed")
Told = TypeVar("Told")


def told_of(
    seeds: Iterable[Seed], one: Callable[[Seed], Told], processes: int, at_a_time: int = 2, in_order: bool = False
) -> Generator[Told, None, None]:
    """What `one` gives for each, as it comes, or in their order. Processes are forked, so what is patched here is
    patched there."""
    if processes == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from (pool.imap if in_order else pool.imap_unordered)(one, seeds, at_a_time)
