"""Steps that can be worked out by hand, and the formulas that hold for equal volunteers."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf

import pytest

from ftnode.protocol.lines.line_bound import Work, bound
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.schedule import NO_LINE, Batch, Layout, Machine, step_timing

FORWARD, BACKWARD = 1.0, 2.0


def chain(stages: int, line: Line = NO_LINE, **slower: float) -> Layout:
    """One holder, p0, p1, …, for each stage; `slower`: by name, how many times."""
    machines = {}
    for stage in range(stages + 1):
        name = f"p{stage}"
        times = slower.get(name, 1.0)
        machines[name] = Machine({stage: (times * FORWARD, times * BACKWARD)}, line)
    return Layout(tuple((name,) for name in machines), machines)


def seconds(layout: Layout, microbatches: int, window: int = 0, tensors: int = 0) -> float:
    batch = Batch(microbatches, window or microbatches, BoundaryBytes(tensors, tensors))
    return step_timing(layout, batch).seconds


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 8), (4, 1), (4, 8), (8, 32), (7, 3)])
def test_equal_stages_take_what_odyssey_says(stages: int, microbatches: int) -> None:
    """Its equation 9. The head is a stage of its own, the last one."""
    assert seconds(chain(stages), microbatches) == (stages + microbatches) * (FORWARD + BACKWARD)


def test_the_slowest_sets_the_pace() -> None:
    """It computes without a break from its first microbatch to its last. Before and after comes the stage below."""
    assert seconds(chain(3, p2=10.0), 6) == FORWARD + 6 * 10 * (FORWARD + BACKWARD) + BACKWARD


def test_a_window_of_one_is_one_after_the_other() -> None:
    assert seconds(chain(3), 5, window=1) == 5 * seconds(chain(3), 1)


def test_a_peer_that_holds_neighbours_computes_both_and_sends_nothing_between() -> None:
    line = Line(10.0, 10.0, 0.0)
    paces = dict.fromkeys(range(3), (FORWARD, BACKWARD))
    alone = Layout((("a",), ("a",), ("a",)), {"a": Machine(paces, line)})
    assert seconds(alone, 4, tensors=100) == 4 * 3 * (FORWARD + BACKWARD)
    two = Layout((("b",), ("a",), ("a",)), {"a": Machine(paces, line), "b": Machine(paces, line)})
    assert seconds(two, 1, tensors=100) == 3 * (FORWARD + BACKWARD) + 4 * 10.0


def test_two_holders_share_by_their_pace() -> None:
    fast, slow = (Machine({1: (times * FORWARD, times * BACKWARD)}) for times in (1.0, 3.0))
    layout = Layout((("h",), ("f", "s")), {"h": Machine({0: (0.0, 0.0)}), "f": fast, "s": slow})
    timing = step_timing(layout, Batch(8, 8))
    assert timing.busy["f"][0] == 6 * 3.0 and timing.busy["s"][0] == 2 * 9.0
    assert timing.seconds == 18.0


def test_two_holders_of_the_head_admit_by_their_pace() -> None:
    heads = {name: Machine({0: (0.0, pace)}) for name, pace in (("a", 1.0), ("b", 3.0))}
    layout = Layout((("a", "b"), ("p",)), heads | {"p": Machine({1: (0.1, 0.1)})})
    timing = step_timing(layout, Batch(8, 8))
    assert timing.busy["a"][0] == 6.0 and timing.busy["b"][0] == 6.0


def test_rerouting_to_the_rest_of_a_group_costs_what_odyssey_says() -> None:
    """Its equation 13, with one of three holders of one stage dead, when a pipeline has N_m microbatches: those that
    the dead one had are shared by two."""
    of_pipeline, stages, holders = 8, 3, 3
    machines = {f"{stage}{n}": Machine({stage: (FORWARD, BACKWARD)}) for stage in range(4) for n in range(holders)}
    whole = Layout(tuple(tuple(f"{stage}{n}" for n in range(holders)) for stage in range(4)), machines)
    one_less = replace(whole, holders=(*whole.holders[:2], whole.holders[2][:-1], whole.holders[3]))
    work = of_pipeline * holders
    expected = (stages + of_pipeline) * (FORWARD + BACKWARD)
    assert seconds(whole, work) == pytest.approx(expected, rel=0.1)
    more = of_pipeline / (holders - 1) * (FORWARD + BACKWARD)
    assert seconds(one_less, work) == pytest.approx(expected + more, rel=0.1)


@pytest.mark.parametrize("volunteers", [3, 5, 9])
def test_a_step_over_lines_takes_no_less_than_its_bound(volunteers: int) -> None:
    line, tensors, microbatches = Line(2.5e6, 12.5e6, 0.03), 1_000_000, 16
    layout = chain(volunteers - 1, line)
    paces = tuple([(FORWARD, BACKWARD)] * volunteers)
    work = Work(microbatches, BoundaryBytes(tensors, tensors), (line.up, line.down), line.delay_seconds, paces)
    least = bound([str(stage) for stage in range(volunteers)], work).seconds
    assert least <= seconds(layout, microbatches, tensors=tensors) <= 1.1 * least


def test_a_thin_line_down_holds_its_sender_up() -> None:
    """Two tensors go to the head, forward and backward, of 10 s each; nothing else takes time."""
    wide, thin = Line(1e9, 1e9, 0.0), Line(1e9, 10.0, 0.0)
    machines = {"h": Machine({0: (0.0, 0.0)}, thin), "p": Machine({1: (0.0, 0.0)}, wide)}
    timing = step_timing(Layout((("h",), ("p",)), machines), Batch(3, 3, BoundaryBytes(100, 100)))
    assert timing.busy["h"][2] == pytest.approx(60.0) and timing.seconds == pytest.approx(60.0, rel=1e-3)
    assert timing.limiting == "h"


def test_copies_of_the_head_share_the_line_of_its_holder() -> None:
    """Of its first holder, with those of the first and the last block stage."""
    line = Line(100.0, inf, 0.0)
    machines = {name: Machine({stage: (0.0, 0.0)}, line) for stage, name in enumerate("hab")}
    layout = Layout((("h",), ("a",), ("b",)), machines)
    tensors = BoundaryBytes(100, 100)
    plain = step_timing(layout, Batch(1, 1, tensors))
    # A third of the line each, until the copies are there at 1.5 s. Then half of the tensor is left.
    copied = step_timing(layout, Batch(1, 1, tensors, copies=(50, 0, 0)))
    assert copied.seconds == pytest.approx(plain.seconds + 1.0)
    assert copied.busy["h"][1] == pytest.approx(plain.busy["h"][1] + 1.0)
    assert copied.busy["a"] == plain.busy["a"]
    everything = step_timing(layout, Batch(1, 1, tensors, copies=(0, 50, 50)))
    assert everything.busy["a"][1] == pytest.approx(plain.busy["a"][1] + 0.5)


def test_the_commit_takes_a_way_to_the_leader_and_one_back() -> None:
    """The head has the last gradient half a second after the other stage was ready."""
    near = chain(1, Line(1e9, 1e9, 0.5))
    assert seconds(near, 1) == 2 * (FORWARD + BACKWARD) + 4 * 0.5
    assert seconds(replace(near, leader="p1"), 1) == seconds(near, 1) + 2 * 0.5


def test_sums_of_a_group_come_last() -> None:
    line = Line(100.0, 100.0, 0.0)
    machines = {name: Machine({1: (FORWARD, BACKWARD)}, line) for name in "ab"} | {"h": Machine({0: (0.0, 0.0)}, line)}
    layout = Layout((("h",), ("a", "b")), machines)
    without = step_timing(layout, Batch(4, 4)).seconds
    assert step_timing(layout, Batch(4, 4, sums=(0, 1000))).seconds == without + 2 * 500 / 100.0


def test_sums_of_several_stages_follow_each_other() -> None:
    """Two peers with the same stages have one line each."""
    line = Line(100.0, 100.0, 0.0)
    paces = {1: (FORWARD, BACKWARD), 2: (FORWARD, BACKWARD)}
    machines = {name: Machine(paces, line) for name in "ab"} | {"h": Machine({0: (0.0, 0.0)}, line)}
    layout = Layout((("h",), ("a", "b"), ("a", "b")), machines)
    without = step_timing(layout, Batch(4, 4)).seconds
    summed = step_timing(layout, Batch(4, 4, sums=(0, 1000, 1000))).seconds
    assert summed == pytest.approx(without + 2 * 2 * 500 / 100.0 - BACKWARD), "stage 2 is done a backward pass before"


def test_a_line_that_carries_nothing_makes_nobody_slow() -> None:
    """Both hold everything, so that no tensor leaves them. They share by the pace of their devices."""
    thin = Line(1.0, 1.0, 0.0)
    fast, slow = (dict.fromkeys(range(2), (times * FORWARD, times * BACKWARD)) for times in (1.0, 3.0))
    machines = {"f": Machine(fast, thin), "s": Machine(slow, Line(1e9, 1e9, 0.0))}
    timing = step_timing(Layout((("f", "s"), ("f", "s")), machines), Batch(8, 8, BoundaryBytes(100, 100)))
    assert {name: busy[0] for name, busy in timing.busy.items()} == {"f": 6 * 6.0, "s": 2 * 18.0}


def test_swapped_routes_visit_each_stage_once() -> None:
    timing = step_timing(chain(4), Batch(6, 6, swap=True))
    assert {busy[0] for busy in timing.busy.values()} == {6 * (FORWARD + BACKWARD)}


def test_what_cannot_run_is_refused() -> None:
    layout = chain(2)
    with pytest.raises(ValueError, match="nobody holds stage 1"):
        step_timing(replace(layout, holders=(("p0",), (), ("p2",))), Batch(1, 1))
    with pytest.raises(ValueError, match="p1 has no pace for stage 2"):
        step_timing(replace(layout, holders=(("p0",), ("p1",), ("p1",))), Batch(1, 1))


def test_it_is_fast_enough_to_plan_with() -> None:
    """64 peers, 31 block stages: 4,160 tasks and as many tensors. The best of three: other tests share the cores."""
    machines = {f"{stage}{n}": Machine({stage: (1.0, 2.0)}, Line(1e6, 5e6, 0.03)) for stage in range(32) for n in "ab"}
    layout = Layout(tuple((f"{stage}a", f"{stage}b") for stage in range(32)), machines)
    took = list[float]()
    for _ in range(3):
        began = time.process_time()
        step_timing(layout, Batch(64, 64, BoundaryBytes(1000, 1000)))
        took.append(time.process_time() - began)
    assert min(took) < 0.5
