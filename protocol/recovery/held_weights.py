"""The weights that this peer holds: which versions of which stages, and the lineages that made them, since what one
made must not mix with what another one did (rule 16)."""

from __future__ import annotations

from dataclasses import dataclass

from ftnode.protocol.words.types import Version
from ftnode.protocol.words.view import Lineage, View

LINEAGES_KEPT = 8


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What we had when our lineage lost to another one. It stays in memory until we hold or learn a stage again, should
    nobody stand behind the other lineage after all."""

    view: View
    """By which we went."""
    origin: str
    lineages: tuple[str, ...]
    versions: dict[int, Version]
    made_in: dict[int, tuple[str, str]]


class HeldWeights:
    """By stage; those of stages no longer held are kept for a return. Whoever drops some tells compute to."""

    def __init__(self) -> None:
        self.versions: dict[int, Version] = {}
        self.made_in: dict[int, tuple[str, str]] = {}
        """Stage → the lineage that made its version, and that lineage's origin; also while it is fetched anew."""
        self._lineages: list[str] = []
        """The lineages that this peer has been in, oldest first, each a descendant of the one before."""
        self._origin = ""
        """Of the lineage that we are in."""
        self._given_up: GivenUp | None = None

    @property
    def ours(self) -> dict[int, Version]:
        """Those that have a common past with the lineage that we are in."""
        return {stage: version for stage, version in self.versions.items() if self.made_in[stage][1] == self._origin}

    @property
    def given_up(self) -> View | None:
        """The view by which we went when our lineage lost, while the weights that we had then are still here."""
        return self._given_up.view if self._given_up is not None else None

    @property
    def in_memory(self) -> set[int]:
        """Stages, those that were given up included."""
        return {*self.versions, *(self._given_up.versions if self._given_up is not None else ())}

    def told_in(self, lineage: str) -> dict[int, Version]:
        """What is ours, if we have been in that lineage; else all, since nobody here knows what its past is."""
        return self.ours if lineage in self._lineages else self.versions

    def applied(self, stage: int) -> int:
        """The step of its version; -1: none is here."""
        return self.versions[stage].step if stage in self.versions else -1

    def hold(self, stage: int, version: Version, lineage: str) -> None:
        self.versions[stage], self.made_in[stage] = version, (lineage, self._origin)

    def expect(self, stage: int) -> None:
        """Its weights come anew."""
        self.versions.pop(stage, None)

    def forget(self, stage: int) -> None:
        self.versions.pop(stage, None)
        self.made_in.pop(stage, None)

    def forget_given_up(self) -> list[int]:
        """Memory is needed, or it belongs to no lineage any more. Returns the stages of which nothing else is here."""
        given, self._given_up = self._given_up, None
        return [stage for stage in given.versions if stage not in self.versions] if given is not None else []

    def lose_given_up(self, stage: int) -> None:
        """Compute has lost it, too."""
        if self._given_up is not None:
            self._given_up.versions.pop(stage, None)

    def lose_all(self) -> None:
        self.versions.clear()
        self.made_in.clear()
        self._given_up = None

    # -- lineages

    def enter(self, lineage: Lineage) -> tuple[bool, bool]:
        """We go by it from now on: whether it has another origin than the last one, and whether we are new in it."""
        other = lineage.origin != self._origin
        if other:
            self._origin, self._lineages = lineage.origin, []
        new = lineage.id not in self._lineages
        if new:
            self._lineages = [*self._lineages[-LINEAGES_KEPT:], lineage.id]
        return other, new

    def yield_to(self, view: View, winner: Lineage) -> tuple[list[str], list[int]]:
        """The lineage of `view` loses: what it made is given up; what is older is the winner's. Returns the lineages
        that lost, and the stages of what was given up before, as forget_given_up."""
        before = self._origin, tuple(self._lineages)
        at = self._lineages.index(winner.id) + 1 if winner.id in self._lineages else len(self._lineages) - 1
        at = at if winner.origin == self._origin else 0
        lost, self._lineages = self._lineages[at:], self._lineages[:at]
        made_in = {stage: made for stage, made in self.made_in.items() if made[0] in lost}
        versions = {stage: version for stage, version in self.versions.items() if stage in made_in}
        for stage in made_in:
            self.forget(stage)  # one that is being fetched is not here
        if not versions:
            return lost, []
        forgotten = self.forget_given_up()
        self._given_up = GivenUp(view, *before, versions, made_in)
        return lost, forgotten

    def go_back(self) -> None:
        """Nobody stands behind the lineage that ours lost to: what was given up is ours again."""
        given = self._given_up
        assert given is not None
        self.versions |= given.versions
        self.made_in |= given.made_in
        self._origin, self._lineages, self._given_up = given.origin, list(given.lineages), None
