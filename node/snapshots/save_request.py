"""`ftnode snapshots save` on the node's side: one request at a time, begun by one question and followed by others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ftnode.node.snapshots.format import KeptSnapshot
from ftnode.node.snapshots.saver import SnapshotSaver

Question = Mapping[str, Any]


class SnapshotRequests:
    """For the control socket: {"do": "snapshot", "to": path, "stage": K or null}, then {"do": "snapshot-state"}."""

    def __init__(self, saver: SnapshotSaver) -> None:
        self._saver = saver
        self._waiting: set[int] = set()
        self._saved: list[dict[str, Any]] = []
        self._troubles: list[str] = []
        self.handlers: Mapping[str, Callable[[Question], Awaitable[Mapping[str, Any]]]] = {
            "snapshot": self._begin, "snapshot-state": self._tell,
        }  # fmt: skip

    async def _begin(self, question: Question) -> Mapping[str, Any]:
        """Every stage, or one, is copied now; a folder that is there already is refused before anything is done."""
        path, wanted = Path(str(question.get("to"))), question.get("stage")
        held = sorted(self._saver.held())
        if self._waiting:
            return {"error": "another save is under way; wait for it"}
        if not held or (wanted is not None and wanted not in held):
            named = ", ".join(map(str, held)) or "none"
            return {"error": f"stage {wanted} is not held here, which holds {named}" if held else "it holds no stage"}
        try:
            if not path.is_absolute() or path.exists():
                return {"error": f"{path} is there already; choose another place, nothing is overwritten"}
            if wanted is None:
                path.mkdir()
        except OSError as error:
            return {"error": f"cannot create {path}: {error.strerror}; choose another place"}
        self._saved, self._troubles = [], []
        stages = held if wanted is None else [int(wanted)]
        self._waiting = set(stages)
        for stage in stages:
            place = path / f"stage-{stage}" if wanted is None else path
            self._saver.once(stage, place, self._done, partial(self._failed, stage))
        return await self._tell(question)

    async def _tell(self, _question: Question) -> Mapping[str, Any]:
        return {"waiting": sorted(self._waiting), "saved": self._saved, "troubles": self._troubles}

    def _done(self, kept: KeptSnapshot) -> None:
        self._waiting.discard(kept.stage)
        facts = {"stage": kept.stage, "step": kept.version.step, "folder": str(kept.folder), "bytes": kept.bytes}
        self._saved.append(facts)

    def _failed(self, stage: int, reason: str) -> None:
        self._waiting.discard(stage)
        self._troubles.append(reason)
