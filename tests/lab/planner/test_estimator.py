"""What the estimate is asked about: paces as volunteers tell them, else as they were started."""

from __future__ import annotations

from ftnode.lab.planner.estimator import CASES, Case, Home, estimated, manifest_for
from ftnode.lab.traces.story import Story, Told
from ftnode.protocol.planning.run_step import HANDLED_SECONDS
from ftnode.protocol.words.codec import tagged
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.messages import Heartbeat, StageReport
from ftnode.protocol.words.types import Peer

EQUAL = CASES["equal paces"]
HOLDERS = (("v0",), ("v1",), ("v2",), ("v3",))


def test_equal_stages_take_what_the_formula_says() -> None:
    """Odyssey, eq. 9, with a head that takes no time. Tensors of the first microbatch and of the last one, and word of
    the commit, are handled in between."""
    seconds = estimated(EQUAL, manifest_for(EQUAL), HOLDERS, "v0", {})
    formula = (EQUAL.stages + EQUAL.microbatches - 1) * sum(EQUAL.homes[1].pace)
    assert formula < seconds <= formula + 10 * HANDLED_SECONDS


def test_a_pace_that_is_told_counts_before_what_a_volunteer_was_started_with() -> None:
    case = Case((Home((0.02, 0.04)), Home((0.02, 0.04))), 1)
    seconds = estimated(case, manifest_for(case), (("v0",), ("v1",)), "v0", {("v1", 1): 0.09})
    assert case.microbatches * 0.09 < seconds <= case.microbatches * 0.09 + 6 * HANDLED_SECONDS


def test_the_story_knows_what_others_were_told_of_a_device() -> None:
    """As the trace of a node has it."""
    story, teller = Story(), Peer("b", 2)
    for name, peer in (("v0", Peer("a", 1)), ("v1", teller)):
        settings = {"microbatches": 4, "steps": 9}
        story.take(Told(name, {"k": "start", "t": 0.0, "peer": [peer.id, peer.nonce], "settings": settings}))
    stages = (StageReport(1, "training", 1, 0, 0, 0, 0.25, 0.5), StageReport(2, "training", 1, 0, 0, 0, 0.0))
    beat = Heartbeat("l", 0, True, 1, stages, 0.0, False, (), (), "", ())
    for sender in (teller, Peer("stranger", 3)):
        story.take(Told("v0", {"k": "event", "t": 1.0, "e": tagged(Received(sender, beat, None))}))
    assert story.paces == {("v1", 1): 0.25}, "what is not known yet, and strangers, tell nothing"
