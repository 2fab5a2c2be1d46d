"""Whether a node finds anybody to start from. Nobody is an error that a person can mend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import trio

from ftnode.node.directory.directory import TO_CHECK
from ftnode.node.watch.clock_offset import FIX
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.events import Directory, DirectoryLost

if TYPE_CHECKING:
    from ftnode.node.links.addresses import PeerAddress
    from ftnode.node.links.reachability import Reachability

ERRORS = "volunteer"


def believable(event: Directory | DirectoryLost, clock: str) -> Directory | DirectoryLost:
    """A directory in which nobody is proves nothing where records of others are outdated, or not yet valid, by our own
    clock: a run that goes on would be founded a second time. `clock`: as of `nobody_met`."""
    if clock and isinstance(event, Directory) and not event.presences and not event.certificates:
        return DirectoryLost("nobody is seen by a clock that is so far off")
    return event


def unanswered(named: Iterable[PeerAddress], met: Collection[str], unreachable: Mapping[str, str]) -> dict[str, str]:
    """PeerId → a line for the terminal, of peers that a person named and that do not answer, when somebody else has
    been met: the swarm that this one knows may not be the one that was meant. `unreachable`: PeerId → why."""
    lines = {}
    for peer in named if met else ():
        if why := " ".join(unreachable.get(peer.peer_id, "").split()):
            lines[peer.peer_id] = f"{peer.peer_id} does not answer ({why}); goes on with others that are known"
    return lines


async def nobody_met(
    seconds: float, reachability: Reachability, met: Callable[[], bool], trouble: Callable[[], str],
    clock: Callable[[], str],
) -> UserError | None:  # fmt: skip
    """Why nobody was met in `seconds`; None when somebody was. Known at once where another peer answers at each address
    that we have. `met`: whether somebody was. `trouble`: of the directory; `clock`: by how much that is too far off;
    both are empty for none."""
    with trio.move_on_after(seconds):
        await reachability.only_others.wait()
    if met():
        return None
    if reachability.only_others.is_set():
        address, there = reachability.instead
        return UserError(f"at {address} another peer answers, {there}; copy the whole address that the peer prints", 69)
    if off := clock():
        return UserError(f"nobody is seen, since {off}; look whether theirs are right, and {FIX}", 69)
    reasons = " ".join((trouble() or reachability.trouble).removesuffix(TO_CHECK).split()) or "no answer"
    cause = f"no peer answered within {seconds:g} s ({reasons})"
    return UserError(f"{cause}; check the address, that the peer runs, and firewalls in between", 69)
