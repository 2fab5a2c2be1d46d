"""`ftnode run rollback --by-members` on the node's side: the owner's vote, and what came of it so far."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from ftnode.protocol.picture import Picture
from ftnode.protocol.words.events import Event, WantsUndo
from ftnode.protocol.words.messages import NO_STEP

Question = Mapping[str, Any]
SECONDS: Final = 2.0
"""For the core to take the vote up."""
LOOK_SECONDS: Final = 0.02


class UndoRequests:
    """For the control socket: {"do": "undo", "to": step}, and {"do": "undo", "to": null} for a vote that is taken
    back."""

    def __init__(self, look: Callable[[], Picture], deliver: Callable[[Event], None]) -> None:
        self._look, self._deliver = look, deliver
        self.handlers: Mapping[str, Callable[[Question], Awaitable[Mapping[str, Any]]]] = {"undo": self._vote}

    async def _vote(self, question: Question) -> Mapping[str, Any]:
        picture, wanted = self._look(), question.get("to")
        if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 0):
            return {"error": "a step is a whole number, from 0 on"}
        if wanted is not None and (picture.view is None or picture.me not in picture.view.voters):
            return {"error": "it has no vote: it holds no stage yet, or is new in the run"}
        if wanted is not None and wanted >= picture.highest_step:
            return {"error": f"the run is at step {picture.highest_step}: nothing after step {wanted} can be undone"}
        before = picture.order
        if wanted is not None and wanted == before.step and _is_pending(picture):  # another node here made it one
            return _told(picture, ordered=True)
        self._deliver(WantsUndo(NO_STEP if wanted is None else wanted))
        with trio.move_on_after(SECONDS):
            while self._look().order == before and self._look().wants_undo != wanted:
                await trio.sleep(LOOK_SECONDS)
        return _told(self._look(), ordered=self._look().order != before)


def _is_pending(picture: Picture) -> bool:
    """The run has not followed the newest order."""
    return picture.view is not None and picture.view.lineage.order < picture.order.number


def _told(picture: Picture, ordered: bool) -> Mapping[str, Any]:
    voters = len(picture.view.voters) if picture.view is not None else 0
    votes = {str(step): len(peers) for step, peers in picture.undo_votes.items()}
    return {"step": picture.highest_step, "votes": votes, "voters": voters, "ordered": ordered}
