"""How one life of a node ends at its owner's word: it leaves, is paused, stands still, goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.driver.core_clock import CoreClock
from ftnode.node.life.departure import Departure
from ftnode.protocol.words.types import Attempt, Version
from tests.node.life.departing import OTHER, Life, passes, run, saving


def test_a_pause_hands_over_and_then_goes_anyway() -> None:
    async def scenario() -> None:
        life = Life()
        began = trio.current_time()
        await life.departure.pause("a game", False, 60.0)
        assert trio.current_time() - began == 60.0 and life.done
        assert life.left == ["pauses, a game"] and "goes without" in life.said[-1]
        assert life.departure.pausing and not life.departure.leaving

    run(scenario)


def test_a_pause_that_was_taken_over_ends_with_it_and_another_word_changes_nothing() -> None:
    async def scenario() -> None:
        life, began = Life(), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            await trio.testing.wait_all_tasks_blocked()
            await life.departure.pause("a game", False, 60.0)
            life.departure.done.set()
        assert trio.current_time() - began < 1.0 and len(life.left) == 1

    run(scenario)


@pytest.mark.parametrize("same_hours", [False, True])
def test_who_leads_lets_others_with_the_same_hours_go_first_and_keeps_it_all(same_hours: bool) -> None:
    async def scenario() -> None:
        life = Life()

        async def other() -> None:
            life.shows(other_leavers=frozenset({OTHER}))
            await trio.testing.wait_all_tasks_blocked()
            assert bool(life.left) is not same_hours
            life.loses_the_others()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "outside of its hours", False, 60.0, same_hours)
            nursery.start_soon(life.departure.pause, "outside of its hours", False, 60.0, same_hours)
            nursery.start_soon(other)
        assert life.departure.frozen and not life.done and bool(life.left) is not same_hours

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_who_waits_for_others_and_may_work_again_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "outside of its hours", False, 60.0, True)
            await trio.testing.wait_all_tasks_blocked()
            life.departure.thaw()
        assert not life.done and not life.left and not life.departure.pausing

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_who_waits_for_others_can_still_be_told_to_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        life = Life()
        life.shows(other_leavers=frozenset({OTHER}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "outside of its hours", False, 60.0, True)
            await trio.testing.wait_all_tasks_blocked()
            await life.departure.pause("outside of its hours", True, 60.0)
            assert life.done and not life.left

    run(scenario)


def test_now_is_now() -> None:
    async def scenario() -> None:
        for life in (Life(), Life(others=False), Life(others=False, finished=True)):
            await life.departure.pause("a game", True, 60.0)
            assert life.done and not life.left

    run(scenario)


def test_who_is_alone_stands_still_and_loses_nothing() -> None:
    async def scenario() -> None:
        life = Life(others=False)
        await life.departure.pause("a game", False, 60.0)
        assert life.compute.frozen and not life.left and not life.done
        assert "ftnode pause --now" in life.departure.frozen and "the head" in life.departure.frozen
        before = life.clock()
        assert life.clock() == before
        life.departure.thaw()
        assert not life.compute.frozen and not life.departure.frozen and life.clock() >= before
        await life.departure.pause("a game", False, 60.0)
        await life.departure.pause("a game", True, 60.0)
        assert life.done and not life.compute.frozen

    run(scenario)


def test_who_is_alone_and_keeps_snapshots_saves_and_lets_its_compute_go() -> None:
    async def scenario() -> None:
        life = saving()
        await life.departure.pause("a game", False, 60.0)
        assert life.compute.gone and not life.compute.frozen and not life.done and not life.left
        assert "is on this disk, as it was after step 5" in life.departure.frozen
        await life.departure.pause("a game", False, 60.0)
        life.departure.thaw()
        assert life.done and life.departure.pausing and not life.departure.leaving, "the next life goes on from there"

    run(scenario)


@pytest.mark.parametrize(
    ("life", "why"),
    [(lambda: saving("the disk is full"), "(the disk is full)"), (lambda: saving(forever=True), "within 5 s")],
    ids=["full", "slow"],
)
def test_who_cannot_save_stands_still_with_all_in_memory(life: Callable[[], Life], why: str) -> None:
    async def scenario() -> None:
        one = life()
        await one.departure.pause("a game", False, 5.0)
        assert one.compute.frozen and not one.compute.gone and not one.done
        assert "stays in memory" in one.departure.frozen and why in one.departure.frozen
        one.departure.thaw()
        assert not one.compute.frozen and not one.done

    run(scenario)


@pytest.mark.parametrize("end", [lambda one: one.thaw(), lambda one: one.leave("Ctrl-C"), lambda one: one.done.set()])
def test_another_word_while_it_saves_counts(end: Callable[[Departure], None]) -> None:
    async def scenario() -> None:
        life = saving(forever=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            await trio.testing.wait_all_tasks_blocked()
            assert life.departure.busy
            await life.departure.pause("a game", False, 60.0)
            end(life.departure)
        assert not life.departure.busy and not life.compute.gone and not life.compute.frozen
        assert not life.departure.frozen and life.clock() != life.clock()

    run(scenario)


def test_stages_of_different_steps_are_not_saved() -> None:
    async def scenario() -> None:
        life = saving()
        life.shows(mine=(0, 1), versions={**life.picture.versions, 1: Version(4, "d", Attempt(1, 1))})
        await life.departure.pause("a game", False, 60.0)
        assert life.compute.frozen and not life.compute.gone

    run(scenario)


def test_alone_with_nothing_to_lose_it_goes() -> None:
    async def scenario() -> None:
        life = Life(others=False, steps=0)
        await life.departure.pause("a game", False, 1.0)
        assert life.left and life.done and not life.compute.frozen

    run(scenario)


def test_an_heir_that_has_not_learnt_it_in_time_is_not_waited_for_and_nothing_is_lost() -> None:
    async def scenario() -> None:
        life, began = Life(others=False, hopeful=True), trio.current_time()
        await life.departure.pause("a game", False, 5.0)
        assert trio.current_time() - began == 5.0 and life.left == ["pauses, a game"]
        assert life.asked_to_stay and life.departure.frozen and life.compute.frozen and not life.done

    run(scenario)


@pytest.mark.parametrize("others_go_too", [False, True])
def test_who_loses_its_heirs_in_a_pause_stands_still(others_go_too: bool) -> None:
    """The core has stayed: all others are gone, or leave, too, and hand over to this one first."""

    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.watch_the_end)
            nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            await passes(5.0)
            assert life.departure.busy and life.left == ["pauses, a game"]
            life.shows(stayed=1)
            if others_go_too:
                life.shows(other_leavers=frozenset({OTHER}))
                await passes(10.0)
                assert life.departure.busy and not life.compute.frozen and len(life.left) == 1
            life.loses_the_others()
            await passes(2.0)
            assert life.departure.frozen and life.compute.frozen and not life.done and not life.departure.busy
            nursery.cancel_scope.cancel()

    run(scenario)


def test_the_last_copy_of_a_finished_run_stays_in_memory_and_is_lent() -> None:
    async def scenario() -> None:
        life = Life(others=False, finished=True)
        await life.departure.pause("a game", False, 60.0)
        assert life.departure.frozen and not life.compute.frozen and not life.done
        life.departure.on_export(True, False)
        assert life.done and life.departure.pausing == "a game"

    run(scenario)


def test_the_cores_time_stands_still() -> None:
    now = [100.0]

    async def scenario() -> None:
        clock = CoreClock(lambda: now[0])
        now[0] = 105.0
        clock.stop()
        now[0] = 200.0
        clock.stop()
        assert clock() == 105.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.going)
            await trio.testing.wait_all_tasks_blocked()
            clock.go()
        now[0] = 201.0
        assert clock() == 106.0

    trio.run(scenario)
