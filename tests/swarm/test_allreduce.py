"""hivemind's `AllReduceRunner` on a group that is named to it, as processes: without a loss, and with one."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ftnode.lab.parts.allreduce import Runners

PEERS, NUMBERS = 3, 250_000

pytestmark = pytest.mark.swarm


def test_a_named_group_averages_and_does_so_again_without_the_dead() -> None:
    with ExitStack() as stack:
        runners = Runners(stack, PEERS, NUMBERS)
        first = runners.round()
        assert first.right and first.equal and first.noticed == 0
        _, repeated = runners.lose(1, seconds=0.0)
        assert repeated.right and repeated.equal and set(repeated.shares) == {"survivors"}
        after = runners.round()
        assert after.right and set(after.shares) == {"all"}
