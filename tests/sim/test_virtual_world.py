"""The virtual world over many seeds: I1 to I8 hold whatever goes wrong, and everything that can go wrong does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

from ftnode.protocol.recovery.standing import GOES_ON
from tests.sim.run import run_seeds
from tests.sim.scenario import Outcome, run_seed
from tests.tiers import at_night, seeds

SEEDS = int(os.environ.get("FTNODE_SEEDS", len(seeds(450))))
"""More in the background: FTNODE_SEEDS=20000 python -m pytest tests/sim/test_virtual_world.py."""
SEARCHED = 1030
"""When the core changes, so does what a seed meets. What none of the others meets is looked for in seeds up to this."""
MEETING = (
    320, 322, 329, 335, 336, 351, 377, 380, 383, 400, 402, 403, 406, 427, 434, 440, 454, 492, 524, 540, 542, 557, 590,
    600, 635, 645, 677, 704, 746, 855, 874, 909, 919, 950, 1265, 1475, 1988,
    2019,
)  # fmt: skip
"""With these, as many kinds of faults strike as in all seeds up to SEARCHED, and each pair of MUST_MEET is met twice,
where so many meet it. When the core changes and the search finds no seed for a pair, look further and name one here."""
SPARE = 0.03
"""Seeds beyond SEEDS, for those that halt by design (the head, or two adjacent stages, cut off at the wrong moment) or
whose faults happen to take no sole holder away. They must hold too; they do not count."""
EVERY_DAY = range(1, int(SEEDS * (1 + SPARE)) + 3)

pytestmark = pytest.mark.timeout(600 * max(1, SEEDS // 1000))
KEPT = (
    158, 470, 530, 663, 1005, 1067, 1111, 1414, 1422, 1633, 1829, 1881, 1982, 2194, 2309, 2419, 2706, 3016, 3239, 3814,
    4549, 5434, 6785, 6808, 7464, 7527, 8175, 9632, 11960, 12205, 12844, 13731, 13996, 14913, 15292, 15614, 15990,
    16663, 16743, 16759, 18020, 21974, 22064, 23324, 30242, 32746, 33311, 44488, 44560, 100700, 101049, 102981, 106160,
    200985, 201290, 204194, 204837, 302981, 303295, 304987,
)  # fmt: skip
"""Each once showed a bug that the seeds of every day do not show."""
FAULTS = (
    "kill", "kill-leader", "vanish", "restart", "pause", "compute", "memory", "hang", "message", "election", "double",
    "newcomers", "partition", "isolate", "link", "one-way",
)  # fmt: skip
MUST_MEET = (
    [(fault, rung) for fault in FAULTS for rung in ("blend", "copy")]
    + [(fault, "kept") for fault in ("pause", "partition")]
    + [(fault, rung) for fault in ("kill", "kill-leader", "vanish", "compute", "double") for rung in ("head", "shadow")]
    + [("head", "head"), ("adjacent", "interpolate"), ("adjacent", "shadow")]
    + [(fault, GOES_ON) for fault in FAULTS if fault not in ("hang", "newcomers")]  # where a stage had other holders
    + [("power", "snapshot")]
    + [("leave", "copy")]  # who leaves hands over, so that little is ever rebuilt
)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return list(run_seeds(sorted({*EVERY_DAY, *(MEETING if at_night() else ())}), 2))


def test_every_invariant_holds_in_every_seed(outcomes: list[Outcome]) -> None:
    bad = sorted((outcome for outcome in outcomes if outcome.violation), key=lambda outcome: outcome.seed)
    assert not bad, f"{len(bad)} of {len(outcomes)} seeds, the first: {bad[0].report()}"


def test_enough_seeds_are_real_tests(outcomes: list[Outcome]) -> None:
    drawn = [outcome for outcome in outcomes if outcome.seed in EVERY_DAY]
    real = [outcome for outcome in drawn if not outcome.halted and outcome.departures >= 1 and outcome.commits >= 20]
    assert len(real) >= SEEDS
    assert all(outcome.peers >= 6 for outcome in outcomes)


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, outcome.report()


def test_every_fault_met_every_rung_and_a_group_that_goes_on(outcomes: list[Outcome]) -> None:
    met: Counter[tuple[str, str]] = Counter()
    others = run_seeds(sorted(set(range(1, SEARCHED + 1)) - {outcome.seed for outcome in outcomes}), 2)
    with closing(others):
        for outcome in chain(outcomes, others):
            assert not outcome.violation, outcome.report()
            met += outcome.met
            if len(met) >= len(MUST_MEET) and all(met[pair] for pair in MUST_MEET):
                break
    assert [pair for pair in MUST_MEET if not met[pair]] == []


def test_a_seed_is_the_same_everywhere() -> None:
    """Hash seeds differ from process to process; nothing that the core decides may depend on them."""
    code = "from tests.sim.scenario import run_seed; print(run_seed(7).notes)"
    root = Path(__file__).resolve().parent.parent.parent
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    assert run_seed(7).notes
