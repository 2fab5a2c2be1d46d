"""Recoveries of before this node's time: a commit says which stage came back, how and how fast; who was lost, who
rebuilt it and why, those say who saw it. That is their word alone, for people, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ftnode.node.watch.status import RecoveryRow
from ftnode.protocol.chronicle import Rebuild
from ftnode.protocol.wire.frames import clean_reason

UNSEEN = -1
"""The `epoch` of one of before our time."""
NAME_MAX = 64
"""Letters of a PeerId."""
Key = tuple[int, int]


class OldRecoveries:
    """What others have told of them. `Key`: step and stage."""

    def __init__(self) -> None:
        self._told: dict[Key, RecoveryRow] = {}

    def learn(self, rows: Iterable[RecoveryRow], wanted: Mapping[Key, Rebuild]) -> None:
        """Of `wanted` ones, which are those that the core remembers. Who tells first is believed."""
        told = {
            (row.step, row.stage): row
            for row in rows
            if row.epoch != UNSEEN and (row.lost or row.newcomer) and _fits(row, wanted.get((row.step, row.stage)))
        }
        self._told = {key: found for key in wanted if (found := self._told.get(key) or told.get(key)) is not None}

    def filled(self, row: RecoveryRow) -> RecoveryRow:
        """With the names and figures that others told, where we have none."""
        told = self._told.get((row.step, row.stage))
        if row.epoch != UNSEEN or told is None:
            return row
        before = row.validation_before if row.validation_before is not None else told.validation_before
        after = row.validation_after if row.validation_after is not None else told.validation_after
        return replace(
            row, epoch=told.epoch, lost=clean_reason(told.lost)[:NAME_MAX],
            newcomer=clean_reason(told.newcomer)[:NAME_MAX], reason=clean_reason(told.reason),
            bytes_fetched=told.bytes_fetched, validation_before=before, validation_after=after,
        )  # fmt: skip


def _fits(row: RecoveryRow, known: Rebuild | None) -> bool:
    """Of one step, a stage may be rebuilt anew for another newcomer, and in another way."""
    return known is not None and known.rung.value == row.rung
