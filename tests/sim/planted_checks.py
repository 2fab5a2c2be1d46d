"""Bugs planted into what the core does with liars among its members; worlds with such liars must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ftnode.protocol.leader import leader
from ftnode.protocol.leader.cases import Cases
from ftnode.protocol.step.admissions import Admissions
from ftnode.protocol.step.check import Check
from ftnode.protocol.words.messages import Plan, Poisoned
from ftnode.protocol.words.types import Peer
from tests.sim.planted import patched


def any_sum_is_right() -> Any:
    """A piece that is added up again is not compared with what its owner made of it (decision 0066)."""

    def agrees(self: Check, stage: int, distance: float, now: float) -> bool:
        self._unweighed.discard(stage)
        return True

    return patched((Check, "agrees", agrees))


def any_path_is_taken() -> Any:
    """A tensor is taken on a path that nobody has signed who admits (decision 0067)."""
    return patched((Admissions, "allows", lambda self, boundary: True))


def two_words_are_not_compared() -> Any:
    """Who has two words for paths of one microbatch shows them to nobody (decision 0067)."""
    return patched((Admissions, "two_paths", lambda self, words: ()))


def forked_attempts_go_on() -> Any:
    """Where Statuses tell of two paths for one microbatch, the attempt goes on all the same (decision 0067)."""
    return patched((leader, "paths_differ", lambda statuses: None))


def who_is_shown_nothing_is_in_the_wrong() -> Any:
    """As one that accuses others otherwise (decision 0068)."""
    return patched((Poisoned, "hides", False))


def its_word_is_enough() -> Any:
    """Of one that is shown nothing (decision 0068)."""

    def believed(self: Cases, s: Any, out: Any, sender: Peer, accused: Peer, poisoned: Poisoned, *more: Any) -> None:
        self._on_its_word(s, out, sender, accused, poisoned)

    return patched((Cases, "_accuse_of_hiding", believed))


def any_copy_is_taken() -> Any:
    """Whoever installs a copy does not compare it with what its holder has told of it (rule 49)."""
    return patched((Plan, "takes", lambda self, digest: True))


class Bug(NamedTuple):
    """`kinds`: of lies that show it. `first`: a seed that does, which is looked at first."""

    plant: Callable[[], Any]
    kinds: tuple[str, ...]
    first: int = 1


BUGS: Final[dict[str, Bug]] = {
    bug.plant.__name__: bug
    for bug in (
        Bug(any_sum_is_right, ("piece",), first=9),
        Bug(any_path_is_taken, ("forks",), first=7),
        Bug(two_words_are_not_compared, ("forks",), first=6),
        Bug(forked_attempts_go_on, ("forks",), first=6),
        Bug(who_is_shown_nothing_is_in_the_wrong, ("hides",), first=10),
        Bug(its_word_is_enough, ("sees_no_parts",), first=6),
        Bug(any_copy_is_taken, ("copies",), first=112),
    )
}
