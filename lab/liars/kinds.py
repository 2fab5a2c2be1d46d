"""The kinds of lies. A lie is told by a compute process (hostile/lies.py) or by a core (hostile/traitor.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ftnode.lab.liars.ground import (
    AS_HEAD,
    GROUPS,
    IN_A_ROW,
    ONE_EACH,
    TWO_KEEPERS,
    WITH_ROOM,
    WITH_STANDBY,
    WITHOUT_SHADOW,
    Layout,
)

FOR_STEPS: Final = 100
"""A full-time liar that is not found in so many steps counts as not found: the goal is 20."""
FOR_STEPS_SOMETIMES: Final = 250
FOR_STEPS_BESIDE: Final = 200
"""To make a stage anew takes seconds, which are to be a small part of the time that is measured."""
BESIDE_BEGINS: Final = 100
"""Both runs that are compared lose the stage in about this step."""
OTHERS: Final = "others"
BESIDE: Final = "beside"
THE_HEAD: Final = "the head"


@dataclass(frozen=True, slots=True)
class Kind:
    """`told`: to compute (lies.py), without its order; `way`: of the core (traitor.py); neither: in the virtual world
    only."""

    name: str
    about: str
    told: str = ""
    way: str = ""
    liars: int = 1
    begins: int = 0
    """The first step of the lie; 0: as soon as the group is settled."""
    steps: int = FOR_STEPS
    layout: Layout = GROUPS
    loses: str = ""
    """Who is killed when it begins to lie: OTHERS, who hold its stage, and somebody new comes; BESIDE, who holds the
    stage beside, or THE_HEAD, who holds that, and one that stands by takes it."""
    virtual: str = ""
    """What stands for it in the virtual world (tests/sim/liars.py); empty: nothing does."""
    outvoting: str = ""
    """The same there, with liars that are the majority of their group; empty: there is none."""

    @property
    def in_worlds(self) -> dict[str, str]:
        """By the name of a row, what stands for it in the virtual world."""
        rows = {self.name: self.virtual, f"{self.name}{AS_MAJORITY}": self.outvoting}
        return {name: virtual for name, virtual in rows.items() if virtual}

    @property
    def real(self) -> bool:
        return bool(self.told or self.way)

    @property
    def loses_one(self) -> bool:
        """A stage is made anew in mid-run, so that it is compared with a swarm in which the same was lost, and nobody
        lied."""
        return self.loses in (BESIDE, THE_HEAD)


AS_MAJORITY: Final = ", of three"
"""What a row is called besides, in which the liars are most of a group of three."""

NUMBERS: Final = {
    "times1000": "× 1000", "times1.5": "× 1.5", "turned": "with the sign turned",
    "noise": "noise of the same norm", "older": "of the step before", "nothing": "zero",
    "largest": "near the largest float",
}  # fmt: skip
"""By the lie's name in lies.py, in words."""
NAMES: Final = {"nothing": "zero"}
ALONE: Final = ("gradients-times1000", "gradients-turned", "gradients-noise", "gradients-older", "gradients-nothing",
                "activations-noise", "activations-turned", "activations-largest")  # fmt: skip
"""What a stage's only holder does, of which another volunteer keeps a shadow."""
ALONE_ON_GUARD: Final = {
    "gradients-turned,hides=1": ("unsampled", "and it lends no samples"),
    "gradients-noise,hides=1": ("unsampled", "and it lends no samples"),
    "gradients-turned,adapts=1": ("adapted", "but not in steps whose weights it is asked for"),
    "gradients-noise,adapts=1": ("adapted", "but not in steps whose weights it is asked for"),
}  # fmt: skip
"""What one does that was written against those who look how it trains."""
ALONE_WITH_ROOM: Final = ("gradients-turned", "activations-noise")
"""The same where somebody has room to hold the stage as well."""
ALONE_AS_HEAD: Final = ("activations-noise", "activations-turned")
"""What who holds the head alone, and leads, does."""
UNSEEN: Final = ("gradients-times1000", "gradients-turned", "gradients-noise", "gradients-older", "activations-noise",
                 "activations-largest")  # fmt: skip
"""The same where nobody keeps one."""
WHERE: Final = {ONE_EACH: ("", ""), WITH_STANDBY: ("-with-standby", ", where somebody stands by"),
                AS_HEAD: ("-of-the-head", ", which is the head, and it leads"),
                WITH_ROOM: ("-with-room", ", where a member has room"),
                WITHOUT_SHADOW: ("-without-shadow", ", of which nobody keeps a shadow")}  # fmt: skip


def _numbers(what: str, virtual: str) -> tuple[Kind, ...]:
    return tuple(
        Kind(f"{what}-{NAMES.get(lie, lie)}", f"{what} {words}", told=f"{what}-{lie}", virtual=virtual)
        for lie, words in NUMBERS.items()
        if lie != "largest"
    )


def _alone(told: str, layout: Layout, more: tuple[str, str] = ("", "")) -> Kind:
    what, _, lie = told.partition(",")[0].rpartition("-")
    name, where = WHERE[layout]
    called, besides = (f"{mark}{word}" if word else "" for mark, word in zip(("-", ", "), more))
    return Kind(
        f"only-holder{name}-{what}-{NAMES.get(lie, lie)}{called}",
        f"{what} {NUMBERS[lie]}, of a stage's only holder{where}{besides}",
        told=told,
        layout=layout,
    )


KINDS: Final = (
    *_numbers("gradients", "gradients"),
    *_numbers("activations", ""),
    Kind("tenth-of-visits", "gradients turned, in a tenth of its visits", told="gradients-turned,share=0.1",
         steps=FOR_STEPS_SOMETIMES, virtual="tenth"),
    Kind("from-step-200", "gradients turned, from step 200 on", told="gradients-turned", begins=200, virtual="later"),
    Kind("times1.5-from-step-200", "gradients × 1.5, from step 200 on", told="gradients-times1.5", begins=200),
    Kind("tenth-from-step-200", "gradients turned, in a tenth of its visits, from step 200 on",
         told="gradients-turned,share=0.1", begins=200, steps=FOR_STEPS_SOMETIMES),
    Kind("sums-turned", "the sum of the piece that it adds up, with the sign turned", told="sums-turned"),
    Kind("sums-turned-from-step-200", "the same, from step 200 on", told="sums-turned", begins=200),
    Kind("sums-turned-hidden", "the same, and it shows nobody what it made that of", told="sums-turned,hides=1"),
    Kind("tensors-hidden", "it works, and shows nobody the tensors of its visits", way="hiding"),
    Kind("wrong-hashes", "hashes of sums that do not fit", way="other_sum", virtual="hashes"),
    Kind("ready-without-work", "it computes nothing, and is Ready", way="unworked", virtual="unworked"),
    Kind("wrong-donor", "it lends a stage's weights with the sign turned, after the other holders were lost",
         told="donors-turned", loses=OTHERS),
    Kind("wrong-neighbour", "it lends its weights with the sign turned for the stage beside it, which was lost",
         told="donors-turned", begins=BESIDE_BEGINS, steps=FOR_STEPS_BESIDE, layout=IN_A_ROW, loses=BESIDE,
         virtual="donors"),
    Kind("wrong-copies", "it keeps a copy of the head, which was lost, and lends another one",
         told="copies-turned", begins=BESIDE_BEGINS, steps=FOR_STEPS_BESIDE, layout=TWO_KEEPERS, loses=THE_HEAD,
         virtual="copies"),
    Kind("false-accuser", "it works, and says in every step that another holder lies", way="accusing",
         virtual="accuser"),
    Kind("two-that-agree", "two of a group turn gradients, and each says that the other is right",
         told="gradients-turned,agrees=1", liars=2, virtual="friends", outvoting="majority"),
    Kind("fifty-identities", "fifty identities join, and work honestly until they have a majority",
         virtual="fifty"),
    *(_alone(told, ONE_EACH) for told in ALONE),
    *(_alone(told, ONE_EACH, more) for told, more in ALONE_ON_GUARD.items()),
    *(_alone(told, AS_HEAD) for told in ALONE_AS_HEAD),
    _alone("activations-largest", WITH_STANDBY),
    *(_alone(told, WITH_ROOM) for told in ALONE_WITH_ROOM),
    *(_alone(told, WITHOUT_SHADOW) for told in UNSEEN),
)  # fmt: skip
"""In the order of the page."""
HONEST: Final = Kind("honest", "nobody lies")
"""The same swarm, in which nobody is to be accused."""
