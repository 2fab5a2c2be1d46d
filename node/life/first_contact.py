"""Whether a node finds anybody to start from. Nobody is an error that a person can mend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from ftnode.node.directory.directory import TO_CHECK
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.links.reachability import Reachability

ERRORS = "volunteer"


async def nobody_met(
    seconds: float, reachability: Reachability, met: Callable[[], bool], trouble: Callable[[], str]
) -> UserError | None:
    """Why nobody was met in `seconds`; None when somebody was. Known at once where another peer answers at each address
    that we have. `met`: whether somebody was. `trouble`: of the directory; empty for none."""
    with trio.move_on_after(seconds):
        await reachability.only_others.wait()
    if met():
        return None
    if reachability.only_others.is_set():
        address, there = reachability.instead
        return UserError(f"at {address} another peer answers, {there}; copy the whole address that the peer prints", 69)
    reasons = " ".join((trouble() or reachability.trouble).removesuffix(TO_CHECK).split()) or "no answer"
    cause = f"no peer answered within {seconds:g} s ({reasons})"
    return UserError(f"{cause}; check the address, that the peer runs, and firewalls in between", 69)
