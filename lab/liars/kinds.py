"""The kinds of lies. A lie is told by a compute process (hostile/lies.py) or by a core (hostile/traitor.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FOR_STEPS: Final = 100
"""A full-time liar that is not found in so many steps counts as not found: the goal is 20."""
FOR_STEPS_SOMETIMES: Final = 250
FOR_STEPS_BESIDE: Final = 200
"""To make a stage anew takes seconds, which are to be a small part of the time that is measured."""
BESIDE_BEGINS: Final = 100
"""Both runs that are compared lose the stage in about this step."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`told`: to compute (lies.py), without its order; `way`: of the core (traitor.py); neither: in the virtual world
    only. `bereaves`: the honest holders of its stage are killed when it begins to lie, and somebody new comes."""

    name: str
    about: str
    told: str = ""
    way: str = ""
    liars: int = 1
    begins: int = 0
    """The first step of the lie; 0: as soon as the group is settled."""
    steps: int = FOR_STEPS
    bereaves: bool = False
    beside: bool = False
    """Each stage has one holder. That of a stage beside the liar's is killed when it begins to lie, and somebody who
    stands by takes the stage. It is compared with the same without a lie."""
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


AS_MAJORITY: Final = ", of three"
"""What a row is called besides, in which the liars are most of a group of three."""

NUMBERS: Final = {
    "times1000": "× 1000", "times1.5": "× 1.5", "turned": "with the sign turned",
    "noise": "noise of the same norm", "older": "of the step before", "nothing": "zero",
}  # fmt: skip
"""By the lie's name in lies.py, in words."""
NAMES: Final = {"nothing": "zero"}


def _numbers(what: str, virtual: str) -> tuple[Kind, ...]:
    return tuple(
        Kind(f"{what}-{NAMES.get(lie, lie)}", f"{what} {words}", told=f"{what}-{lie}", virtual=virtual)
        for lie, words in NUMBERS.items()
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
    Kind("wrong-hashes", "hashes of sums that do not fit", way="other_sum", virtual="hashes"),
    Kind("ready-without-work", "it computes nothing, and is Ready", way="unworked", virtual="unworked"),
    Kind("wrong-donor", "it lends a stage's weights with the sign turned, after the other holders were lost",
         told="donors-turned", bereaves=True),
    Kind("wrong-neighbour", "it lends its weights with the sign turned for the stage beside it, which was lost",
         told="donors-turned", begins=BESIDE_BEGINS, steps=FOR_STEPS_BESIDE, beside=True, virtual="donors"),
    Kind("wrong-copies", "it keeps copies, and lends others", virtual="copies"),
    Kind("false-accuser", "it works, and says in every step that another holder lies", way="accusing",
         virtual="accuser"),
    Kind("two-that-agree", "two of a group turn gradients, and each says that the other is right",
         told="gradients-turned,agrees=1", liars=2, virtual="friends", outvoting="majority"),
    Kind("fifty-identities", "fifty identities join, and work honestly until they have a majority",
         virtual="fifty"),
)  # fmt: skip
"""In the order of the page."""
