"""What can go wrong in a stage, by whose fault it is."""

from __future__ import annotations


class StageFault(Exception):
    """The numbers went wrong: something is not finite, or too large to compute with. What was accumulated is not used;
    the step needs another attempt."""

    def __init__(self, reason: str, stage: int) -> None:
        super().__init__(reason)
        self.stage = stage


class Misuse(Exception):
    """A command that does not fit the stage's state: a mistake of ours, never of the data."""

    def __init__(self, reason: str, stage: int) -> None:
        super().__init__(reason)
        self.stage = stage


class DiskUnreadable(Misuse):
    """The disk did not give out a file this time, which says nothing of what is in it."""


class WrongLayer(Misuse):
    """A layer of the model that the run begins with is not what its hash says, or is gone."""
