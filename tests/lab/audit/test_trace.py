"""One node's trace: how often a stage's gradients are summed in one attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftnode.lab.audit.trace import read_life
from ftnode.node.driver.trace import read_trace
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.events import Done
from ftnode.protocol.words.types import Attempt
from ftnode.protocol.words.view import View
from tests.lab.audit.miniature import HOLDERS, NAMES, PEERS, REPLICA, STAGES, Miniature, view

ATTEMPT, STEP = Attempt(0, 1), 1
IN_TWO = ((PEERS["last"], 0), (PEERS[REPLICA], 0))

SUMS = {  # (the number of the view taken up, or the group that sums: nobody for who is alone), and whether it is right
    "alone": ([0, ()], True),
    "alone, twice": ([0, (), ()], False),
    "in a group": ([0, IN_TWO], True),
    "in a group, twice": ([0, IN_TWO, IN_TWO], False),
    "in a group, then in the next view's": ([0, IN_TWO, 1, IN_TWO], True),
    "in a group whose other member dies": ([0, IN_TWO, 1, ()], True),
    "in a group whose other member dies, then twice": ([0, IN_TWO, 1, (), ()], False),
    "in a group, then alone in its view": ([0, IN_TWO, ()], False),
    "alone, then in the next view with another": ([0, (), 1, IN_TWO], True),
}


@pytest.mark.parametrize(("taken", "right"), SUMS.values(), ids=SUMS.keys())
def test_a_stage_is_reduced_once_in_a_view(tmp_path: Path, taken: list[int | tuple[()]], right: bool) -> None:
    written = Miniature(tmp_path)
    written.open("last")
    previous: View | None = None
    for what in taken:
        if isinstance(what, int):
            previous = view(what, previous, HOLDERS[0], NAMES[:4], "test", ())
            written.install_view(previous)
        else:
            assert previous is not None
            task = Reduce(STAGES, STEP, ATTEMPT, previous.number if what else 0, what)
            written.event("last", Done(task, None, 1.0, 0, "gradient", ""))
            written.record(
                "last", "reduced", stage=STAGES, step=STEP, attempt=ATTEMPT, covered=[], norm_squared=1.0
            )  # fmt: skip
    written.traces["last"].close(written.tick(), "stopped")
    path = tmp_path / "last" / "trace.jsonl"
    found = [finding.rule for finding in read_life(path, read_trace(path)).findings]
    assert found == ([] if right else ["exactly once"])
