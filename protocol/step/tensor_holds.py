"""Which boundary tensors the work on an attempt holds, and what for.

A tensor's slot belongs to the core from the event that brings its handle until the Release that names it. In between
it belongs to the work that accepted it, for one use or for both: a tensor that one stage of ours makes for another is
read here and kept to be sent again. In a run with checks, one that was read stays until the attempt ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from ftnode.protocol.words.types import Direction, Handle

TensorKey = tuple[int, int, Direction]
"""(microbatch, visit it is for, direction)."""


class Use(StrEnum):
    READ = "a task of ours reads it"
    RESEND = "we made it, and whoever takes its reader's place is sent it again"
    SEEN = "another made it for us, and somebody may want to see what that was"
    CHECK = "somebody made it for another, whose visit we do again, or that one made it"
    ERRAND = "somebody showed it to us, and we show it to one that is not shown it"


READ, RESEND, SEEN, CHECK, ERRAND = Use.READ, Use.RESEND, Use.SEEN, Use.CHECK, Use.ERRAND


class Holds:
    """The ledger of an attempt's tensors. Whoever lets go of some gets those that nothing holds any more, and releases
    them. `beside`: another ledger of the same tensors, which may outlive this one, or end before it."""

    def __init__(self, beside: Holds | None = None) -> None:
        self._handles: dict[tuple[Use, TensorKey], Handle] = {}
        self._uses: dict[Handle, int] = beside._uses if beside is not None else {}
        """Handle → how many uses hold it, at least one, in all ledgers."""

    @property
    def handles(self) -> frozenset[Handle]:
        """Of all tensors that are held here."""
        return frozenset(self._handles.values())

    def hold(self, use: Use, key: TensorKey, handle: Handle) -> None:
        self._handles[use, key] = handle
        self._uses[handle] = self._uses.get(handle, 0) + 1

    def handle(self, use: Use, key: TensorKey) -> Handle | None:
        return self._handles.get((use, key))

    def let_go(self, use: Use, keys: Iterable[TensorKey]) -> tuple[Handle, ...]:
        """What is not held for this use is passed over."""
        found = [self._handles.pop((use, key), None) for key in keys]
        return tuple([handle for handle in found if handle is not None and self._unused(handle)])

    def let_go_of_all(self) -> tuple[Handle, ...]:
        mine = [*self._handles.values()]
        self._handles.clear()
        return tuple(sorted(handle for handle in mine if self._unused(handle)))

    def _unused(self, handle: Handle) -> bool:
        self._uses[handle] -= 1
        if self._uses[handle]:
            return False
        del self._uses[handle]
        return True
