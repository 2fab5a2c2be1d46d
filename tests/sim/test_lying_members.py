"""Members that lie, among all that can go wrong: what the core promises holds for the others (lying_members.py)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

import pytest

from ftnode.protocol.words.types import Attempt, Peer, Version, initial_version, next_version
from tests.sim.checks import Ledger, Violation
from tests.sim.hostile_world import TABLE_MAX
from tests.sim.lying_members import ALL, WORDS, LyingMembers, Told, run_seed, run_seeds
from tests.sim.lying_words import SAID
from tests.sim.planted_checks import BUGS
from tests.tiers import at_night

SEEDS: Final = range(1, 401 if at_night() else 5)
PLANTED_MAX: Final = 40
"""Worlds in which a planted bug must be found."""
KEPT: Final = (482, 139, 207, 115, 47, 416, 590, 783, 838, 1056, 1128, 1475)
"""Each once showed a fault that the seeds of every day do not show."""

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def all_told() -> list[Told]:
    return list(run_seeds(SEEDS))


def test_every_invariant_holds_in_every_seed(all_told: list[Told]) -> None:
    bad = [told for told in all_told if told.violation]
    assert not bad, f"{len(bad)} of {len(all_told)} worlds, the first: {bad[0].report()}"


def test_the_swarms_train_and_their_members_lie(all_told: list[Told]) -> None:
    assert all(told.commits >= 20 for told in all_told if not told.halted)
    assert sum(bool(told.halted) for told in all_told) <= len(all_told) / 10
    assert sum(bool(told.lies) for told in all_told) >= 0.7 * len(all_told)


def test_all_kinds_of_lies_are_told_and_liars_are_found(all_told: list[Told]) -> None:
    """In the seeds of a night."""
    lies, said = Counter[str](), Counter[str]()
    for told in all_told:
        lies, said = lies + told.lies, said + told.said
    assert [kind for kind in ALL if lies[kind] < 5] == []
    assert [kind for kind in SAID if said[kind.__name__] < 10] == []
    assert sum(told.convicted for told in all_told) >= len(all_told) / 10


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    told = run_seed(seed)
    assert not told.violation, told.report()


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """And what was found is the bug's."""
    bug = BUGS[name]
    with bug.plant():
        seeds = range(bug.first, bug.first + PLANTED_MAX)
        seed = next(each for each in seeds if run_seed(each, bug.kinds).violation)
    assert not run_seed(seed, bug.kinds).violation
    if seed != bug.first:
        warnings.warn(f"seed {seed} shows {name} now; name it in planted_checks.py", stacklevel=1)


def test_a_world_of_liars_is_the_same_each_time() -> None:
    first, second = run_seed(7, [WORDS]), run_seed(7, [WORDS])
    assert first.said.total() > 5 and first.notes
    assert (first.said, first.events, first.notes) == (second.said, second.events, second.notes)


def test_a_table_that_grows_is_seen() -> None:
    world = LyingMembers(1).world
    host = world.start("peer", 1)
    world.count_tables(host)
    host.participant.liveness.heard |= {Peer("peer", nonce): 0.0 for nonce in range(TABLE_MAX + 1)}
    with pytest.raises(Violation, match=r"entries in Liveness\.heard"):
        world.count_tables(host)


def committed(lineage: str, first: Version, steps: int) -> list[Version]:
    """The version of `first`, and those after it."""
    versions = [first]
    for n in range(steps):
        versions.append(next_version(versions[-1], lineage, Attempt(1, n), skipped=True))
    return versions


def takes_copies(seen: Collection[int], copies: Collection[Version], base: Version, past: Sequence[Version]) -> None:
    """Of a base with this past, of which somebody honest has made the steps that are `seen`."""
    ledger = Ledger()
    for before, after in pairwise(past):
        if after.step in seen:
            ledger.applied("maker", 0, before, after, True, 1, 1)
    for copy in copies:
        ledger.check_copy("taker", 0, copy, 1, base)


def test_a_copy_of_another_past_is_seen_where_it_can_be() -> None:
    """Seed 1128: nobody honest had made one of the commits between a copy and the base, and an honest copy was taken
    for one of another past."""
    start = initial_version("lineage")
    past = committed("lineage", start, 6)
    base, others = past[5], committed("other", past[1], 4)
    every = range(7)
    takes_copies(every, past[1:6], base, past)
    takes_copies({1, 2, 4, 5}, past[1:6], base, past)
    for seen, steps in ((every, (2, 3, 4, 5)), ({1, 2, 4, 5}, (4, 5)), ((), (5,))):
        for step in steps:
            with pytest.raises(Violation, match="is not in the past of"):
                takes_copies(seen, [others[step - 1]], base, past)
    with pytest.raises(Violation, match="I3"):
        takes_copies(every, [past[6]], base, past)
