"""What a reader does not believe: holders and members that lie, break or never answer."""

from __future__ import annotations

import io
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import trio
import trio.testing

from ftnode.node.export import client
from ftnode.node.export.client import ModelReader
from ftnode.node.export.wire import (
    PLACES_MAX,
    WAIT_SECONDS,
    ExportOffer,
    ExportRequest,
    Holders,
    Place,
    SendIt,
    hear_asked,
)
from ftnode.node.links.side_messages import say
from ftnode.protocol.words.errors import UserError
from tests.node.export.exporting import (
    NOW,
    RUN,
    STAGE_BYTES,
    STEPS,
    WANTED,
    Disk,
    refused,
    run,
    silent,
    take,
    three,
)

GOOD = ExportOffer(5, "c5", STAGE_BYTES, "0" * 32)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\0\x04\xc1\xc1\xc1\xc1", b""])
def test_a_status_that_is_garbage_is_no_member(garbage: bytes) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        swarm.words[holders[0].id] = garbage
        await refused(swarm, 69, "nobody who was asked takes part in the run", holders[0].id[-6:])

    run(main)


def test_who_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "OFFER_SECONDS", 0.05)

    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        holders[2].answer = silent
        await refused(swarm, 75, "stage 2", "it does not answer")
        monkeypatch.setattr(client, "ANSWER_SECONDS", 0.05)
        holders[0].answer = silent
        await refused(swarm, 69, "who holds the stages: it does not answer")

    run(main)


@pytest.mark.parametrize(
    "told",
    [
        Holders("other", 5, 0.0, ()),
        Holders(RUN, -1, 0.0, ()),
        Holders(RUN, 5, -1.0, ()),
        Holders(RUN, 5, 0.0, (Place(0, 0, "", ()),) * (PLACES_MAX + 1)),
        GOOD,
    ],
)
def test_a_member_that_lies_about_the_holders_is_not_believed(told: Holders | ExportOffer) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)

        async def answer(stream: trio.SocketStream) -> None:
            await hear_asked(stream)
            await say(stream, told)

        holders[0].answer = answer
        disk = Disk()
        with pytest.raises(UserError, match=r"something else|that cannot be") as caught:
            await take(swarm, disk)
        assert caught.value.exit_code in (69, 76) and not disk.stages

    run(main)


@pytest.mark.parametrize(
    ("step", "seconds", "asked"),
    [
        (5, 0.5, 8),  # a second and a step ahead
        (5, 0.01, 106),
        (5, 2.0, 7),
        (5, 60.0, 5),  # nobody commits before all are asked
        (STEPS - 1, 0.5, STEPS),
        (STEPS, 0.5, STEPS),
        (5, 0.0, 5),  # it stands still
    ],
)
def test_which_step_is_asked_for(step: int, seconds: float, asked: int) -> None:
    wanted = replace(WANTED, steps=max(STEPS, asked))
    if step + 1 >= STEPS:
        wanted = WANTED
    chosen, patience = client.choose(Holders(RUN, step, seconds, ()), wanted.steps)
    assert chosen == asked
    assert patience >= client.OFFER_SECONDS + (chosen - step) * seconds


@pytest.mark.parametrize("seconds", [5e-324, 1e-9, 1e9, 1e300])
def test_a_member_that_lies_about_the_length_of_steps_is_not_waited_for(seconds: float) -> None:
    """It may hold all stages by its own word, and never answer."""
    chosen, patience = client.choose(Holders(RUN, 5, seconds, ()), 10_000)
    assert 5 <= chosen <= 5 + 1 + 1000 and patience <= client.OFFER_SECONDS + WAIT_SECONDS


Lie = Callable[[trio.SocketStream], Awaitable[None]]


def offering(offer: ExportOffer, data: bytes) -> Lie:
    """A holder that says and sends just this."""

    async def answer(stream: trio.SocketStream) -> None:
        assert isinstance(await hear_asked(stream), ExportRequest)
        await say(stream, offer)
        with suppress(EOFError):  # who does not want it hangs up
            assert isinstance(await hear_asked(stream), SendIt)
            await stream.send_all(data)

    return answer


@pytest.mark.parametrize(
    ("offer", "data", "code", "says"),
    [
        (replace(GOOD, size=STAGE_BYTES + 4), b"", 76, f"{STAGE_BYTES + 4} bytes there, and {STAGE_BYTES} by the mani"),
        (replace(GOOD, step=6), b"", 75, "something else"),
        (replace(GOOD, commit="x" * 129), b"", 75, "an ExportOffer of what cannot be"),
        (replace(GOOD, commit="`x`"), b"", 75, "an ExportOffer of what cannot be"),
        (replace(GOOD, digest=""), b"", 75, "without a hash"),
        (GOOD, bytes(STAGE_BYTES), 75, "do not have the hash"),
        (GOOD, struct.pack("<40f", *[float("nan")] * 40), 75, "not finite"),
        (GOOD, bytes(STAGE_BYTES - 1), 75, "it hung up"),
    ],
)
def test_a_holder_that_lies_is_not_believed(offer: ExportOffer, data: bytes, code: int, says: str) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        holders[2].answer = offering(offer, data)
        await refused(swarm, code, "stage 2", says)

    run(main)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\0\x04\xc1\xc1\xc1\xc1", b"\0\0\0\x05\x91\xa4What", b""])
def test_garbage_costs_the_attempt_and_no_more(garbage: bytes) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)

        async def answer(stream: trio.SocketStream) -> None:
            await stream.send_all(garbage)

        holders[1].answer = answer
        await refused(swarm, 75, "stage 1")

    run(main)


def test_a_full_disk_is_our_own_fault() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)

        class Full(io.BytesIO):
            def write(self, data: object) -> int:
                raise OSError(28, "No space left on device")

        with pytest.raises(UserError) as caught:
            await ModelReader(swarm, WANTED, lambda stage: Full()).take(swarm.peers, NOW, lambda model: None)
        assert caught.value.exit_code == 74 and "No space left" in str(caught.value)

    run(main)
