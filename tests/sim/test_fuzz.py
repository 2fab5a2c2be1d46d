"""No message that the wire lets in ends a node, fills its memory or holds it up, whoever sends it (fuzz.py)."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from functools import partial
from random import Random

import pytest

from ftnode.protocol.participant import Participant
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.types import Attempt, Rung, Version, initial_version
from tests.protocol.beginnings import begun
from tests.protocol.situations import SETTINGS, A, B, view_of
from tests.sim.fuzz import Fuzzed, run_fuzz, run_many
from tests.sim.hostile_world import HostileWorld
from tests.sim.planted_lies import LIES
from tests.tiers import NIGHT_ONLY, at_night

EVENTS = int(os.environ.get("FTNODE_LIES", 20_000 if at_night() else 20_000 // NIGHT_ONLY))
"""Hostile messages; a night's run has a million besides: python -m tests.sim.fuzz 1 1000000 --events 1000000."""
SEEDS_MAX = 10 * EVENTS // 400

PLANTED_MAX = 60
"""Worlds in which a planted bug must be found."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def fuzzed() -> list[Fuzzed]:
    """Worlds until enough hostile messages have arrived."""
    found, arrived = list[Fuzzed](), 0
    for outcome in run_many(range(1, SEEDS_MAX), reach=True):
        found.append(outcome)
        arrived += outcome.hostile
        if arrived >= EVENTS:
            return found
    raise AssertionError(f"{arrived} messages in {len(found)} worlds")


def test_no_message_ends_a_node(fuzzed: list[Fuzzed]) -> None:
    crashed = [f"seed {outcome.seed}: {outcome.crash}" for outcome in fuzzed if outcome.crash]
    assert not crashed, "\n".join([f"{len(crashed)} of {len(fuzzed)} worlds", *crashed[:3]])
    assert sum(outcome.commits for outcome in fuzzed) > 5 * len(fuzzed), "the swarms train as well"
    admitted = sum(outcome.admitted.total() for outcome in fuzzed)
    assert admitted > sum(outcome.hostile for outcome in fuzzed) / 3, "and many lies come past the door"


OF_SEVERAL = ("Convicted",)
"""Each of the words in it has to make sense, and it has one tensor too many or too few in most of them."""
REACHED = [
    ("Accepted", "Balloting.on_accepted"),
    ("Answer", "Recruiting.on_answer"),
]
"""(kind, function of the core): where lies must get to, since there they could do harm."""


def test_lies_get_far(fuzzed: list[Fuzzed]) -> None:
    """A fuzz target whose messages are dropped at the door finds nothing."""
    received, admitted, reached = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for outcome in fuzzed:
        received, admitted = received + outcome.received, admitted + outcome.admitted
        reached += outcome.reached
    assert [kind for kind in ms.MESSAGES if admitted[kind] < (10 if kind in OF_SEVERAL else 30)] == [], admitted
    few = [kind for kind in ms.MESSAGES if admitted[kind] < received[kind] / (20 if kind in OF_SEVERAL else 5)]
    assert few == [], [(kind, received[kind], admitted[kind]) for kind in few]
    assert [place for place in REACHED if reached[place] < 3] == []


@pytest.mark.parametrize("name", LIES)
def test_a_planted_bug_is_found(name: str) -> None:
    """And what was found is the bug's."""
    lie = LIES[name]
    run = partial(run_fuzz, kinds=lie.kinds, insists=lie.insists)
    with lie.plant():
        seed = next(each for each in range(lie.first, lie.first + PLANTED_MAX) if run(each).crash)
    assert not run(seed).crash
    if seed != lie.first:
        warnings.warn(f"seed {seed} shows {name} now; name it in planted_lies.py", stacklevel=1)


def test_a_world_of_lies_is_the_same_each_time(fuzzed: list[Fuzzed]) -> None:
    first = min((world for world in fuzzed if world.hostile > 100 and not world.crash), key=lambda world: world.events)
    again = [run_fuzz(first.seed, reach=True) for _ in range(3)]
    for world in again:
        assert (first.received, first.events, first.commits) == (world.received, world.events, world.commits)
        assert first.admitted == world.admitted
    assert again[1].reached == again[2].reached, "each finds in caches what the one before it has left there"


def test_a_table_that_grows_is_seen() -> None:
    world = HostileWorld(SETTINGS, 1, None)
    host = world.start("m", 1)
    world.count_tables(host)
    host.participant.liveness.heard |= {host.peer._replace(nonce=n): 0.0 for n in range(1000)}
    with pytest.raises(Exception, match=r"1000 entries in Liveness\.heard"):
        world.count_tables(host)


@pytest.mark.parametrize("bogus", [Version(1, "bogus", Attempt(3, 99)), Version(5, "bogus", Attempt(3, 99))])
def test_a_base_that_never_was_does_not_end_those_who_are_left_with_it(bogus: Version) -> None:
    """The leader begins a step after a commit that nobody was Ready for, without a plan, and is gone. Who founds a
    lineage then finds itself behind that commit."""
    first = initial_version("lineage")
    plans = tuple(ms.Plan(stage, B, Rung.INITIAL, (), 1.0, "", None) for stage in (1, 2))
    core, now = Participant(B, SETTINGS, Random(1), hold=3), 0.1
    core.handle(ev.ComputeReady(3, True, 1.0), 0.0)
    core.handle(ev.Received(A, ms.Certificate(view_of((A,), (B,), (B,)), True, ()), None), now)
    begins = (begun(first, attempt=Attempt(3, 1), installs=plans), begun(bogus, attempt=Attempt(3, 2)))
    for begin in begins:
        for effect in core.handle(ev.Received(A, begin, None), now):
            if isinstance(effect, fx.Install):
                core.handle(ev.Installed(effect.plan.stage, effect.base, 1, 0.1, 0.1, ""), now)
    while now < 200.0:
        now = max(now + 0.01, core.deadline)
        core.handle(ev.Wake(), now)
    assert core.view is not None and core.view.leader == B and core.waiting().startswith(ms.HALTED)
