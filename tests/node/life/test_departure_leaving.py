"""How one life of a node ends when it is asked to leave, in a pause or not, and what it does not take along."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ftnode.protocol.holder.own_departure import HandedOver
from tests.node.life.departing import ME, OTHER, Life, passes, run, saving
from tests.protocol.pictures import signs
from tests.protocol.situations import view_of


def test_the_second_wish_to_leave_ends_it() -> None:
    async def scenario() -> None:
        life = Life()
        life.departure.leave("Ctrl-C")
        assert life.left == ["Ctrl-C"] and not life.done
        life.departure.leave("a closed terminal", again_ends=False)
        assert not life.done
        life.departure.leave("Ctrl-C")
        assert life.done and life.departure.leaving

    run(scenario)


def test_a_last_copy_stays_until_it_is_exported() -> None:
    async def scenario() -> None:
        life = Life(others=False, finished=True)
        life.departure.leave("Ctrl-C")
        assert life.departure.keeps == (0,) and not life.left
        life.departure.on_export(False, False)
        assert not life.left
        life.departure.on_export(True, False)
        assert life.left == ["the model was exported"]

    run(scenario)


def test_who_gives_up_the_last_copy_says_what_goes_with_it() -> None:
    """After the end nobody takes anything over, and nothing is trained that could be lost."""

    async def scenario() -> None:
        life = Life(others=False, finished=True)
        life.departure.stored = lambda: {0: 4}
        life.departure.leave("Ctrl-C")
        life.departure.leave("Ctrl-C again")
        assert life.left == ["Ctrl-C again"] and not life.done
        assert life.said[-1] == (
            "leaving: leaves, and the last copy of the head goes with this node; this disk has the head as of step 4; "
            "once more ends at once"
        )

    run(scenario)


def test_asked_to_leave_while_it_hands_over_it_does_not_come_back() -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            await trio.testing.wait_all_tasks_blocked()
            life.departure.leave("Ctrl-C")
            assert life.departure.leaving and not life.done and life.left == ["pauses, a game", "Ctrl-C"]
            life.departure.leave("Ctrl-C")
            assert life.done

    run(scenario)


def test_who_has_saved_can_leave_or_free_the_rest() -> None:
    async def scenario() -> None:
        leaver, goer = saving(), saving()
        for life in (leaver, goer):
            await life.departure.pause("a game", False, 60.0)
        leaver.departure.leave("Ctrl-C")
        assert leaver.done and leaver.departure.leaving
        await goer.departure.pause("a game", True, 60.0)
        assert goer.done and goer.departure.pausing == "a game"
        assert not any("resuming" in line for life in (leaver, goer) for line in life.said)

    run(scenario)


def test_who_is_frozen_can_be_told_to_leave() -> None:
    async def scenario() -> None:
        life = Life(others=False)
        await life.departure.pause("a game", False, 60.0)
        life.departure.leave("Ctrl-C")
        assert not life.compute.frozen and life.left == ["Ctrl-C"] and not life.departure.frozen

    run(scenario)


@pytest.mark.parametrize(("trouble", "says"), [("", "this disk has the head"), ("it is full", "saved: it is full")])
def test_what_nobody_has_taken_over_is_saved_when_the_core_has_stopped(trouble: str, says: str) -> None:
    async def scenario() -> None:
        life = saving(trouble)
        await life.departure.save_the_rest((0,))
        assert says in life.said[-1]
        idle = Life()
        for departure, stages in ((life.departure, ()), (idle.departure, (0,))):
            await departure.save_the_rest(stages)
        assert len(life.said) == 2 and not idle.said, "there is nothing to save, or nowhere"

    run(scenario)


@pytest.mark.parametrize(("pauses", "seconds"), [(False, 60.0), (True, 10.0)])
def test_a_disk_that_takes_too_long_is_not_waited_for_but_a_pause_waits_a_while(pauses: bool, seconds: float) -> None:
    async def scenario() -> None:
        life = saving(forever=True)
        life.shows(members=frozenset({*life.picture.members, OTHER}), alone=False)
        async with trio.open_nursery() as nursery:
            if pauses:
                nursery.start_soon(life.departure.pause, "a game", False, 5.0)
            await passes(4.5)
            began = trio.current_time()
            await life.departure.save_the_rest((0,))
            assert trio.current_time() - began == pytest.approx(seconds) and not life.done
            assert f"nothing was saved: not within {seconds:g} s" in life.said[-1]
            life.departure.done.set()

    run(scenario)


def test_who_saves_and_is_asked_again_goes_at_once() -> None:
    async def scenario() -> None:
        life = saving(forever=True)
        life.departure.leave("Ctrl-C")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.save_the_rest, (0,))
            await passes(1.0)
            life.departure.leave("Ctrl-C")
            assert life.done and life.left == ["Ctrl-C"]
            nursery.cancel_scope.cancel()

    run(scenario)


def test_asked_to_leave_while_a_pause_saves_it_leaves_and_the_core_says_what_is_saved() -> None:
    async def scenario() -> None:
        life = saving(forever=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            await passes(1.0)
            life.departure.leave("SIGTERM")
            await passes(1.0)
            assert life.left == ["SIGTERM"] and not life.departure.frozen and life.clock() != life.clock()

    run(scenario)


def test_who_leaves_last_and_keeps_nothing_says_what_goes_with_it() -> None:
    async def scenario() -> None:
        life, others, keeps = Life(others=False), Life(), saving()
        for one in (life, others, keeps):
            one.departure.leave("Ctrl-C")
            assert one.left == ["Ctrl-C"]
        assert "its training goes with this node" in life.said[-1]
        assert "training" not in others.said[-1] + keeps.said[-1], "the core says what is saved"

    run(scenario)


def test_what_nobody_else_was_there_to_take_is_gone_or_on_this_disk() -> None:
    """The last line does not say that it comes back, after the first has said that it goes."""

    async def scenario() -> None:
        for life, kept in ((Life(others=False), False), (saving(), True), (saving("the disk is full"), False)):
            life.shows(fate=HandedOver(gone=(0,)))
            assert life.departure.fate == HandedOver(gone=(0,))
            await life.departure.save_the_rest((0,))
            assert life.departure.fate == (HandedOver(on_disk=(0,)) if kept else HandedOver(gone=(0,)))
        earlier, paused = Life(others=False), saving()
        earlier.departure.stored = lambda: {0: 4, 1: 4}
        await paused.departure.pause("a game", False, 60.0)
        for life in (earlier, paused):
            life.shows(fate=HandedOver(gone=(0,)))
            assert life.departure.fate == HandedOver(on_disk=(0,))

    run(scenario)


def test_asked_to_leave_in_a_pause_it_has_all_the_time_that_leaving_has() -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            await passes(55.0)
            life.departure.leave("Ctrl-C")
        assert trio.current_time() >= 60.0 and not life.done and life.departure.leaving

    run(scenario)


@pytest.mark.parametrize("pauses", [False, True])
def test_the_run_ends_while_the_last_holder_hands_over(pauses: bool) -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.departure.watch_the_end)
            if pauses:
                nursery.start_soon(life.departure.pause, "a game", False, 60.0)
            else:
                life.departure.leave("Ctrl-C")
            await passes(10.0)
            life.shows(finished=True)
            await passes(10.0)
            assert not life.departure.keeps and not life.departure.frozen, "another one has it"
            life.shows(signs=signs(OTHER))
            await passes(2.0)
            if pauses:
                assert "the last copy of the head stays in memory" in life.departure.frozen
                assert not life.departure.busy and not life.compute.frozen, "it is lent"
            else:
                assert life.departure.keeps == (0,) and "nobody has exported" in life.said[-1]
            assert not life.done and len(life.left) == 1
            life.departure.on_export(True, False)
            assert life.done if pauses else life.left[1:] == ["the model was exported"]
            nursery.cancel_scope.cancel()

    run(scenario)


def test_before_it_ends_at_once_it_says_what_would_be_lost() -> None:
    """Issue 17, row 2: the only holder of stages was pressed twice, and saw only that once more ends at once."""

    async def scenario() -> None:
        life = Life()
        life.shows(members=frozenset({ME, OTHER}), view=view_of((ME,), (OTHER,), (OTHER,)), highest_step=5)
        life.departure.stored = lambda: {0: 4}
        life.departure.leave("Ctrl-C")
        (said,) = life.said
        assert said.startswith("leaving: leaving, and hands over first: nobody else holds the head; without this node ")
        assert "the run would stop" in said and "this disk has the head as of step 4; once more ends at once" in said
        life.departure.leave("Ctrl-C")
        assert life.said[1].startswith("leaving: ends at once: nobody else holds the head") and life.done

    run(scenario)


def test_who_takes_nothing_along_leaves_without_many_words() -> None:
    async def scenario() -> None:
        life = Life()
        life.shows(view=view_of((ME, OTHER), (OTHER,), (OTHER,)))
        life.departure.leave("Ctrl-C")
        life.departure.leave("Ctrl-C")
        assert life.said == ["leaving: leaving; once more ends at once"] and life.done

    run(scenario)
