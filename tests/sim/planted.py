"""Bugs planted into the real core. Each is a patch of one decision; the world's checks must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ftnode.protocol import ballot, barrier, holder, leader, participant, step, succession, types, view
from ftnode.protocol.messages import Status


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes, and put the originals back."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def any_quorum() -> Any:
    """One voter is a quorum."""
    return patched((view.View, "is_quorum", lambda self, peers: bool(set(peers) & set(self.voters))))


def no_adoption() -> Any:
    """A proposer puts its own view forward although one may have been accepted (rule 11)."""
    return patched((ballot, "adopt", lambda promises, own: own))


def no_barrier() -> Any:
    """The leader of a new view decides when two thirds of the members have reported (rule 17)."""
    original = leader.Leader.on_status

    def on_status(self: leader.Leader, sender: Any, status: Status) -> None:
        original(self, sender, status)
        members = self.core.members
        if self.begin is None and len(self.statuses) * 3 >= len(members) * 2:
            for peer in sorted(members - self.statuses.keys()):
                self.statuses[peer] = Status(
                    status.lineage, status.view, None, 0, None, False, (), None, (), ()
                )  # fmt: skip
            self.decide()

    return patched((leader.Leader, "on_status", on_status))


def early_commit() -> Any:
    """All but one Ready are enough (rule 24)."""
    return patched((leader.Leader, "_all_ready", lambda self: len(self.ready) >= len(self.core.members) - 1))


def apply_without_gradient() -> Any:
    """A holder is Ready when its tasks are done, reduced or not (rule 23)."""

    def nothing_left(self: Any) -> bool:
        return all(self.expected(stage) <= self.accumulated for stage in self.stages)

    return patched(
        (step.StepWork, "_nothing_left_to_reduce", nothing_left),
        (step.StepWork, "has_reduced", lambda self, stage: True),
        (step.StepWork, "_reduce_if_complete", lambda self, stage: None),
    )


def newcomers_vote() -> Any:
    """Every member of a new view is a voter at once (rule 13)."""
    original = succession.next_view

    def next_view(before: Any, leads: Any, gone: Any, vacated: Any, fills: Any, settled: Any, reason: Any) -> Any:
        return original(before, leads, gone, vacated, fills, {*settled, *fills.values()}, reason)

    from ftnode.protocol import follow

    places = [module for module in (leader, follow, succession, *optional("recruiting")) if "next_view" in vars(module)]
    return patched(*((module, "next_view", next_view) for module in places))


def optional(name: str) -> list[Any]:
    import importlib

    return [importlib.import_module(f"ftnode.protocol.{name}")]


def old_attempts_accepted() -> Any:
    """A tensor of an earlier attempt is as good as one of this (rule 21)."""

    def on_boundary(self: Any, sender: Any, boundary: Any, handle: Any) -> None:
        if self.work is None or self.core.view is None:
            self.core.emit(holder.Release((handle,)))
        else:
            self.core.route(self.work.on_boundary(sender, boundary, handle))

    def fits(self: Any, sender: Any, boundary: Any) -> bool:
        return len(boundary.path) == self.last + 1 and boundary.path[boundary.visit] == self.me

    return patched((holder.Holder, "on_boundary", on_boundary), (step.StepWork, "_fits", fits))


def double_accumulation() -> Any:
    """A tensor that comes twice is computed twice (rule 21)."""
    return patched((step.StepWork, "_has", lambda self, microbatch, visit, direction: False))


def nothing_is_resent() -> Any:
    """A tensor whose acknowledgement is missing is not sent again (rule 21)."""
    return patched((step.StepWork, "resend", lambda self, now, due: []))


def lineages_share_names() -> Any:
    """A version does not name its lineage: two lineages of one parent make equal versions of unequal weights."""

    def next_version(base: Any, lineage: str, attempt: Any, skipped: bool) -> Any:
        return types.next_version(base, "", attempt, skipped)

    return patched(*((module, "next_version", next_version) for module in (leader, barrier, holder)))


def losers_keep_weights() -> Any:
    """Whoever yields takes its weights along, and counts as being where its new lineage is (rule 16)."""

    def yield_to(self: Any, winner: str) -> None:
        self._lineages.append(winner)

    return patched((holder.Holder, "yield_to", yield_to))


def stale_begin() -> Any:
    """A Begin is obeyed whoever sends it and of whatever view (rule 19)."""

    def on_begin(self: Any, sender: Any, message: Any) -> None:
        if self.view is not None and self.member:
            self.holder.on_begin(message)

    table = {**participant._MESSAGES}
    table[participant.ms.Begin] = on_begin
    return patched((participant, "_MESSAGES", table))


def promises_broken() -> Any:
    """An acceptor forgets what it promised and accepted (rule 12)."""
    original = ballot.Balloting.on_prepare

    def on_prepare(self: Any, sender: Any, prepare: Any) -> Any:
        self.promised = self.accepted = None
        return original(self, sender, prepare)

    return patched((ballot.Balloting, "on_prepare", on_prepare))


def nobody_yields() -> Any:
    """Two lineages that meet both go on (rule 16)."""
    return patched((view.Lineage, "beats", lambda self, other: False))


def suspects_are_believed() -> Any:
    """Who is reported silent is gone; nobody is asked (rule 9)."""
    from ftnode.protocol import losses

    return patched((losses.Losses, "on_suspect", lambda self, sender, suspect: self.lose(suspect.peer, suspect.detail)))


BUGS: dict[str, tuple[Callable[[], Any], int]] = {
    function.__name__: (function, seeds)
    for function, seeds in (
        (any_quorum, 200), (no_adoption, 2000), (no_barrier, 200), (early_commit, 200), (apply_without_gradient, 200),
        (newcomers_vote, 200), (old_attempts_accepted, 200), (double_accumulation, 200), (nothing_is_resent, 200),
        (lineages_share_names, 2000), (losers_keep_weights, 200), (stale_begin, 2000), (promises_broken, 2000),
        (nobody_yields, 200),
    )
}  # fmt: skip
"""Name to the patch and the number of seeds within which it must be found."""
