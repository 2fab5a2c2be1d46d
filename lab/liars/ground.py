"""In what swarm a kind of lie is told: who holds what, and what the run's manifest says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from ftnode.lab.swarms.trial import FOREVER, small_manifest
from ftnode.protocol.manifest.parse import Manifest, Trust

MICROBATCHES: Final = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """The head and `blocks` stages, each with so many `holders` at most. `hold`: stages of each volunteer at most.
    `spare`: who stands by. `sole`: the liar is a stage's only holder. `shadow_every`: steps between two shadows of each
    stage, with another volunteer; 0: nobody keeps any. `leads`: the liar comes first, so that it holds the head, and
    leads."""

    blocks: int = 1
    holders: int = 3
    hold: int = 1
    spare: int = 0
    sole: bool = False
    shadow_every: int = 0
    leads: bool = False

    @property
    def volunteers(self) -> int:
        """As many as have all places."""
        return self.holders * (1 + self.blocks) // self.hold

    @property
    def stages(self) -> range:
        return range(1 + self.blocks)

    @property
    def lacks_a_holder(self) -> bool:
        """When the liar has gone: nobody holds its stage beside it, or stands by."""
        return self.sole and self.holders == 1 and not self.spare


GROUPS: Final = Layout()
"""The liar has two honest holders beside it."""
ONE_EACH: Final = Layout(blocks=2, holders=1, sole=True, shadow_every=10)
"""The liar holds its stage alone, and nobody else may: another volunteer keeps a shadow of it. Somebody new comes when
it has gone."""
AS_HEAD: Final = replace(ONE_EACH, leads=True)
"""The same, and what it holds is the head, of which the two others keep copies."""
WITHOUT_SHADOW: Final = Layout(blocks=2, holders=1, sole=True)
"""The same, and nobody keeps shadows."""
WITH_STANDBY: Final = Layout(blocks=2, holders=1, spare=1, sole=True)
"""Nobody keeps shadows, and somebody stands by."""
WITH_ROOM: Final = Layout(blocks=2, holders=2, hold=2, sole=True)
"""As many volunteers as stages. Who has room holds what another one has, so that it can be checked."""
TWO_KEEPERS: Final = Layout(blocks=2, holders=1, spare=2)
"""Those of the two block stages keep the head's copies, and the liar is one of them."""
IN_A_ROW: Final = Layout(blocks=3, holders=1, spare=2)
"""So many that a stage between two others can be lost."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the manifest says. `boundary`: how tensors travel; `sums`: how parts of sums do; `checks`: the share;
    `group`: how many hold a stage, where the kind is one of a group; `subspace`: so many coordinates travel; 0: all."""

    boundary: str = "float32"
    sums: str = "exact"
    checks: float = 0.02
    group: int = GROUPS.holders
    subspace: int = 0

    @property
    def name(self) -> str:
        """What is not as usual: `boundary int8, checks 0`."""
        usual = Setting()
        words = {"boundary": self.boundary, "sums": self.sums, "checks": f"{self.checks:g}", "group": str(self.group),
                 "subspace": str(self.subspace)}  # fmt: skip
        unusual = (f"{key} {word}" for key, word in words.items() if getattr(self, key) != getattr(usual, key))
        return ", ".join(unusual) or "usual"


USUAL: Final = Setting()
ONLY_HOLDER: Final = "only holder"
NO_SHADOWS: Final = "without shadows"


@dataclass(frozen=True, slots=True)
class Ground:
    layout: Layout = field(default_factory=Layout)
    setting: Setting = field(default_factory=Setting)

    @classmethod
    def of(cls, layout: Layout, setting: Setting) -> Ground:
        """With groups as large as the setting says."""
        return cls(replace(layout, holders=setting.group) if layout == GROUPS else layout, setting)

    @property
    def name(self) -> str:
        """Under which its rows stand: what is not as usual."""
        parts = [ONLY_HOLDER] * self.layout.sole + [NO_SHADOWS] * (self.layout == WITHOUT_SHADOW)
        parts += [self.setting.name] * (self.setting != USUAL)
        return ", ".join(parts) or USUAL.name

    @property
    def alone(self) -> Ground:
        """One volunteer that holds everything: nobody sums up with it, and nobody checks it."""
        blocks = self.layout.blocks
        setting = Setting(boundary=self.setting.boundary, subspace=self.setting.subspace)
        return Ground(Layout(blocks, holders=1, hold=1 + blocks), setting)

    def manifest(self) -> Manifest:
        layout, setting = self.layout, self.setting
        small = small_manifest(None, layout.blocks, FOREVER, replicas=layout.holders)
        return replace(
            small,
            model=replace(small.model, subspace=setting.subspace),
            batch=replace(small.batch, microbatches=MICROBATCHES),
            pipeline=replace(small.pipeline, boundary=setting.boundary, sums=setting.sums),
            trust=Trust(checks=setting.checks),
            recovery=replace(small.recovery, shadow_every=layout.shadow_every),
        )
