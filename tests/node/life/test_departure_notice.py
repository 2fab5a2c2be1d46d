"""A node that ends at a certain time: what its core hears, and that nothing keeps it longer."""

from __future__ import annotations

import trio
import trio.testing

from ftnode.node.cli.limits import Rate
from ftnode.node.life.departure import CLOSING_SECONDS, LAST_SECONDS
from ftnode.protocol.words.codec import tagged
from tests.node.life.departing import Life, passes, run, saving


async def leaving(life: Life, within: float, nursery: trio.Nursery) -> float:
    """When it was asked."""
    nursery.start_soon(life.departure.watch_the_end)
    await passes(0.7)  # in the middle of two looks
    life.departure.line_rate = lambda: Rate(2.5e6)
    life.departure.leave("asked", within=within)
    return trio.current_time()


async def ended(life: Life, asked: float) -> float:
    await life.departure.done.wait()
    return trio.current_time() - asked


def test_its_core_hears_the_time_and_the_line_and_the_node_ends_then() -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            asked = await leaving(life, 30.0, nursery)
            (word,) = life.words
            assert (word.within, word.bytes_per_second) == (30.0 - CLOSING_SECONDS, 2.5e6)
            assert tagged(word), "it can be written to the trace"
            assert "within 30 s" in life.said[-1]
            assert abs(await ended(life, asked) - (30.0 - LAST_SECONDS)) < 0.01, "though the core never stopped"
            nursery.cancel_scope.cancel()

    run(scenario)


def test_a_shorter_time_counts_and_a_longer_one_does_not() -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            asked = await leaving(life, 30.0, nursery)
            life.departure.leave("asked", within=5.0)
            life.departure.leave("asked", within=90.0)
            assert [round(word.within, 3) for word in life.words] == [29.0, 4.0, 4.0] and not life.done
            assert abs(await ended(life, asked) - (5.0 - LAST_SECONDS)) < 0.01
            nursery.cancel_scope.cancel()

    run(scenario)


def test_a_second_word_without_a_time_ends_it_at_once() -> None:
    async def scenario() -> None:
        life = Life()
        async with trio.open_nursery() as nursery:
            asked = await leaving(life, 30.0, nursery)
            life.departure.leave("asked by SIGTERM")
            assert await ended(life, asked) == 0.0
            nursery.cancel_scope.cancel()

    run(scenario)


def test_who_has_time_is_given_less() -> None:
    async def scenario() -> None:
        life = Life()
        life.departure.leave("asked")
        async with trio.open_nursery() as nursery:
            asked = await leaving(life, 3.0, nursery)
            assert [word.within for word in life.words] == [-1.0, 2.0]
            assert abs(await ended(life, asked) - (3.0 - LAST_SECONDS)) < 0.01
            nursery.cancel_scope.cancel()

    run(scenario)


def test_a_last_copy_stays_until_the_time_is_up() -> None:
    async def scenario() -> None:
        life = Life(others=False, finished=True)
        async with trio.open_nursery() as nursery:
            asked = await leaving(life, 10.0, nursery)
            assert life.departure.keeps == (0,) and "or in 10 s" in life.said[-1] and not life.words
            assert abs(await ended(life, asked) - (10.0 - LAST_SECONDS)) < 0.01
            nursery.cancel_scope.cancel()

    run(scenario)


def test_what_is_saved_has_no_more_than_the_time() -> None:
    async def scenario() -> None:
        life = saving(forever=True)
        async with trio.open_nursery() as nursery:
            asked = await leaving(life, 4.0, nursery)
            await life.departure.save_the_rest((0,))
            assert trio.current_time() - asked <= 4.0 and "nothing was saved" in life.said[-1]
            nursery.cancel_scope.cancel()

    run(scenario)
