"""Copies of stages between peers: kept, lent, taken up; compute faked in plain Python, streams from socket pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.links.streams import FrameReader, write_frame
from ftnode.node.weights.copies import Copy
from ftnode.node.weights.copy_fetching import Fetched
from ftnode.protocol.wire.frames import Refusal, StateChunk, StateHeader, StateHistory
from ftnode.protocol.words.effects import Install, Keep
from ftnode.protocol.words.events import History, Installed, InstallFailed, KeepFailed, Kept
from ftnode.protocol.words.messages import Commit, Donor, Plan
from ftnode.protocol.words.types import Attempt, Peer, Rung, Version
from tests.node.weights.lending import BASE, CHUNK, NUMBERS, Host, Network

HEAD_BYTES = 3 * 4 * NUMBERS
LATER = Version(7, "c7", Attempt(1, 4))
LOST = Install(
    Plan(0, Peer("newcomer", 1), Rung.HEAD, (Donor(0, Peer("keeper", 1), ()),), 1.0, "a copy is kept", BASE), LATER
)
COMMITS = tuple(Commit(step, 5.0 / step, 64, 0.5, False, (1.0,) * 5) for step in range(1, 2501))


def keep(stage: int = 0, donor: str = "holder", parts: str = "all", since: int = -1) -> Keep:
    return Keep(Donor(stage, Peer(donor, 1), ()), BASE, parts, "raw", since)


def run(main: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(bounded)


async def keeper_of(nursery: trio.Nursery, holder: Host, effect: Keep, name: str = "keeper") -> Host:
    """A peer that has fetched its copy and put it where it lends from."""
    keeper = Host(name)
    holder.members.add("newcomer")
    fetched = await keeper.keeper(Network(nursery, holder)).fetch(effect)
    assert fetched.copy is not None, fetched.event
    keeper.copies.held[effect.donor.stage], keeper.lent = fetched.copy, holder.lent
    await trio.testing.wait_all_tasks_blocked()
    assert not holder.compute.exports and holder.arena.free == holder.arena.slots
    return keeper


def lost(keeper: Host) -> Install:
    """The plan of a leader that has heard what the holder lent."""
    return replace(LOST, plan=replace(LOST.plan, told=tuple(copy.digest for copy in keeper.lent)))


def asked(effect: Install, donors: tuple[Donor, ...]) -> Install:
    return replace(effect, plan=replace(effect.plan, donors=donors))


def test_a_head_goes_through_its_keepers_memory_bit_by_bit() -> None:
    async def main(nursery: trio.Nursery) -> None:
        holder = Host("holder").holds(0, 7.0, 2.5)
        keeper = await keeper_of(nursery, holder, keep())
        assert keeper.copies.held[0].size == HEAD_BYTES and keeper.compute.calls == []
        newcomer = Host("newcomer")
        outcome = await newcomer.installer(Network(nursery, keeper)).install(lost(keeper))
        assert isinstance(outcome.event, Installed)
        assert (outcome.copy_step, outcome.event.bytes_fetched) == (BASE.step, HEAD_BYTES)
        version, numbers, omega, count = newcomer.compute.stages[0]
        assert (version, omega, count) == (LATER, 2.5, 5)  # the name of the base, the age of the copy
        assert numbers == holder.compute.stages[0][1]
        assert newcomer.compute.moments[0] == holder.compute.moments[0]
        begun = next(fields for op, fields in newcomer.compute.calls if op == "install_begin")
        assert (begun["parts"], begun["rate_factor"]) == ("all", 1.1)
        assert [export.purpose for export in (*holder.exported, *keeper.exported)] == ["keep", "copy"]
        assert {export.digest for export in (*holder.exported, *keeper.exported)} == {outcome.event.digest}

    run(main)


def test_a_copy_is_of_the_commit_asked_for_though_the_holder_goes_on() -> None:
    async def main(nursery: trio.Nursery) -> None:
        holder = Host("holder", slots=6).holds(0, 7.0, 2.5)
        expected = [*holder.compute.stages[0][1]]
        begin = holder.compute.export_begin

        def commit(**fields: Any) -> dict[str, Any]:
            answer = begin(**fields)
            holder.holds(0, 100.0, 1.0, LATER)
            return answer

        holder.compute.export_begin = commit  # type: ignore[method-assign]
        keeper = await keeper_of(nursery, holder, keep())
        assert keeper.copies.held[0].header.version == BASE
        newcomer = Host("newcomer")
        await newcomer.installer(Network(nursery, keeper)).install(lost(keeper))
        assert newcomer.compute.stages[0][1] == expected

    run(main)


def test_a_keeper_that_takes_the_stage_itself_needs_nobody() -> None:
    async def main(nursery: trio.Nursery) -> None:
        keeper = await keeper_of(nursery, Host("holder").holds(0, 7.0, 2.5), keep())
        outcome = await keeper.installer(Network(nursery)).install(lost(keeper))
        assert isinstance(outcome.event, Installed) and outcome.event.bytes_fetched == 0
        assert keeper.compute.stages[0][0] == LATER and [export.to for export in keeper.exported] == ["keeper"]
        assert keeper.arena.free == keeper.arena.slots

    run(main)


def test_a_holder_that_is_this_very_node_is_read_without_the_network() -> None:
    async def main(nursery: trio.Nursery) -> None:
        me = Host("holder").holds(0, 7.0, 2.5)
        fetched = await me.keeper(Network(nursery)).fetch(keep(since=0))
        assert isinstance(fetched.event, Kept) and fetched.event.bytes_fetched == 0 and fetched.copy is not None
        assert fetched.copy.size == HEAD_BYTES and me.compute.exports == {}

    run(main)


def test_the_next_keeper_is_asked_and_one_without_a_copy_says_so() -> None:
    async def main(nursery: trio.Nursery) -> None:
        keeper = await keeper_of(nursery, Host("holder").holds(0, 7.0, 2.5), keep())
        empty, newcomer = Host("empty"), Host("newcomer")
        donors = tuple(Donor(0, Peer(name, 1), ()) for name in ("gone", "empty", "keeper"))
        network = Network(nursery, keeper, empty)
        outcome = await newcomer.installer(network).install(asked(lost(keeper), donors))
        assert isinstance(outcome.event, Installed) and [each.peer.id for each in outcome.donors] == ["keeper"]
        outcome = await newcomer.installer(network).install(asked(lost(keeper), donors[:2]))
        assert outcome.event == InstallFailed(0, LATER, Peer("empty", 1), "no copy of stage 0 is kept here")
        assert network.struck == []

    run(main)


def test_a_copy_from_after_the_base_is_neither_lent_nor_taken() -> None:
    async def main(nursery: trio.Nursery) -> None:
        keeper = await keeper_of(nursery, Host("holder").holds(0, 7.0, 2.5), keep())
        earlier = replace(LOST, base=Version(4, "c4", Attempt(1, 1)))
        newcomer, network = Host("newcomer"), Network(nursery, keeper)
        outcome = await newcomer.installer(network).install(earlier)
        assert isinstance(outcome.event, InstallFailed) and "after 4" in outcome.event.reason
        keeper.donor._kept = lambda wanted: keeper.copies.held[0]  # type: ignore[method-assign]
        outcome = await newcomer.installer(network).install(earlier)
        assert isinstance(outcome.event, InstallFailed) and "not the state asked for" in outcome.event.reason
        assert len(network.struck) == 1 and newcomer.compute.calls == []

    run(main)


def test_who_is_lent_a_copy_has_it_whole_though_a_newer_one_comes() -> None:
    async def main(nursery: trio.Nursery) -> None:
        keeper = await keeper_of(nursery, Host("holder").holds(0, 7.0, 2.5), keep())
        newer = await keeper_of(nursery, Host("holder").holds(0, 50.0, 1.0), keep())
        newcomer, network = Host("newcomer"), Network(nursery, keeper)
        take = newcomer.compute.install_chunk

        def swap(**fields: Any) -> dict[str, Any]:
            keeper.copies.held = newer.copies.held
            return take(**fields)

        newcomer.compute.install_chunk = swap  # type: ignore[method-assign]
        outcome = await newcomer.installer(network).install(lost(keeper))
        assert isinstance(outcome.event, Installed)
        assert newcomer.compute.stages[0][1] == [7.0 + n for n in range(NUMBERS)]

    run(main)


def other_bytes(copy: Copy, index: int) -> Copy:
    """With one bit of a chunk turned, and nothing that would show it."""
    chunks = [bytearray(chunk) for chunk in copy.chunks]
    chunks[index][0] ^= 1
    hashes = tuple(hashlib.blake2b(chunk, digest_size=16).digest() for chunk in chunks)
    return replace(copy, header=replace(copy.header, digest=""), chunks=tuple(chunks), hashes=hashes)


LIES: dict[str, Callable[[Copy], Copy]] = {
    "weights": lambda copy: other_bytes(copy, 0),
    "moments": lambda copy: other_bytes(copy, -1),
    "updates": lambda copy: replace(copy, header=replace(copy.header, step_count=copy.header.step_count ^ 1)),
    "rate": lambda copy: replace(copy, header=replace(copy.header, rate_factor=100.0)),
    "norm": lambda copy: replace(copy, header=replace(copy.header, norm_squared=1e9)),
    "name": lambda copy: replace(copy, header=replace(copy.header, version=replace(BASE, commit="other"))),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_keeper_that_lends_another_copy_than_it_was_lent_is_refused(lie: str) -> None:
    async def main(nursery: trio.Nursery) -> None:
        holder = Host("holder").holds(0, 7.0, 2.5)
        liar, honest = await keeper_of(nursery, holder, keep(), "liar"), await keeper_of(nursery, holder, keep())
        liar.copies.held[0] = LIES[lie](liar.copies.held[0])
        newcomer, network = Host("newcomer"), Network(nursery, liar, honest)
        donors = Donor(0, liar.peer, ()), Donor(0, honest.peer, ())
        outcome = await newcomer.installer(network).install(asked(lost(honest), donors[:1]))
        assert isinstance(outcome.event, InstallFailed) and outcome.event.donor == liar.peer
        assert "liar has another copy than it was lent" in outcome.event.reason and 0 not in newcomer.compute.stages
        outcome = await newcomer.installer(network).install(asked(lost(honest), donors))
        assert isinstance(outcome.event, Installed) and [each.peer for each in outcome.donors] == [honest.peer]
        assert newcomer.compute.stages[0][1] == holder.compute.stages[0][1]

    run(main)


@pytest.mark.parametrize("lie", LIES)
def test_without_the_comparison_it_gets_in(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "takes", lambda self, digest: True)

    async def main(nursery: trio.Nursery) -> None:
        liar = await keeper_of(nursery, Host("holder").holds(0, 7.0, 2.5), keep(), "liar")
        liar.copies.held[0] = LIES[lie](liar.copies.held[0])
        effect = asked(lost(liar), (Donor(0, liar.peer, ()),))
        outcome = await Host("newcomer").installer(Network(nursery, liar)).install(effect)
        assert isinstance(outcome.event, Installed)

    run(main)


def test_a_holder_says_what_it_lends_before_the_keeper_has_it_and_once_for_all_who_get_the_same() -> None:
    async def main(nursery: trio.Nursery) -> None:
        holder = Host("holder").holds(0, 7.0, 2.5)
        await keeper_of(nursery, holder, keep())
        await keeper_of(nursery, holder, keep())
        (first, second) = holder.lent
        assert first == second and (first.stage, first.version, first.keeper) == (0, BASE, "newcomer")
        replica = Plan(0, Peer("newcomer", 1), Rung.REPLICA, keep_donors(), 1.0, "", None)
        await Host("newcomer").installer(Network(nursery, holder)).install(Install(replica, BASE))
        assert len(holder.lent) == 2, "nobody keeps that one"

    run(main)


def test_nothing_is_said_of_a_copy_that_breaks_off() -> None:
    async def main(nursery: trio.Nursery) -> None:
        holder = Host("holder").holds(0, 7.0, 2.5)
        holder.compute.fails = "export_chunk"
        fetched = await Host("keeper").keeper(Network(nursery, holder)).fetch(keep())
        assert isinstance(fetched.event, KeepFailed) and holder.lent == []

    run(main)


@pytest.mark.parametrize("since", [-1, 0, 2400])
def test_the_past_is_told_along(since: int) -> None:
    """In pieces that fit a frame and a line of the trace."""

    async def main(nursery: trio.Nursery) -> None:
        holder = Host("holder").holds(0, 7.0, 2.5)
        holder.commits = list(COMMITS)
        fetched = await Host("keeper").keeper(Network(nursery, holder)).fetch(keep(since=since))
        expected = COMMITS[since:] if since >= 0 else ()
        check(fetched.history, expected)
        newcomer = Host("newcomer")
        replica = Install(Plan(0, Peer("newcomer", 1), Rung.REPLICA, keep_donors(), 1.0, "", None), BASE)
        outcome = await newcomer.installer(Network(nursery, holder), since=since).install(replica)
        check(outcome.history, expected)

    def check(told: tuple[History, ...], expected: tuple[Commit, ...]) -> None:
        assert sum((piece.commits for piece in told), ()) == expected
        assert all(0 < len(piece.commits) <= 1000 for piece in told)

    run(main)


def keep_donors() -> tuple[Donor, ...]:
    return (keep().donor,)


HEADER = StateHeader(BASE, 1.0, 8, HEAD_BYTES, "", 5, 1.0, "raw")
DATA = bytes(CHUNK)
HASH = hashlib.blake2b(DATA, digest_size=16).digest()
HALF = hashlib.blake2b(bytes(CHUNK // 2), digest_size=16).digest()
CHUNKS = [*(StateChunk(index, HASH) for index in range(7)), StateChunk(7, HALF)]


async def lied_to(nursery: trio.Nursery, frames: list[Any], since: int) -> tuple[Fetched, Network]:
    """What comes of a Keep when the donor answers with these frames."""

    async def lie(stream: trio.SocketStream) -> None:
        await FrameReader(stream).header()
        for frame in frames:
            payload = DATA[: CHUNK // 2 if getattr(frame, "index", 0) == 7 else CHUNK]
            await write_frame(stream, frame, memoryview(payload) if isinstance(frame, StateChunk) else None)

    network = Network(nursery)
    network.answers["liar"] = lie
    return await Host("keeper").keeper(network).fetch(keep(donor="liar", since=since)), network


@pytest.mark.parametrize(
    ("frames", "says", "struck"),
    [
        ([], "the stream ended", False),
        ([Refusal("tired", False)], "tired", False),
        ([replace(HEADER, version=LATER)], "not the state asked for", True),
        ([replace(HEADER, version=replace(BASE, commit="other"))], "not the state asked for", True),
        ([replace(HEADER, encoding="int8")], "not the state asked for", True),
        ([replace(HEADER, size=1 << 50)], "instead of 480", True),
        ([replace(HEADER, chunks=1 << 40)], "instead of 480", True),
        ([replace(HEADER, step_count=-1)], "cannot be", True),
        ([HEADER, StateChunk(0, bytes(16))], "does not have its hash", True),
        ([HEADER, StateChunk(1, HASH)], "something else than chunk 0", True),
        ([HEADER, *CHUNKS[:7], StateChunk(0, HASH)], "something else than chunk 7", True),
        ([HEADER, *CHUNKS[:3]], "the stream ended", False),
    ],
)
def test_a_holder_that_breaks_off_or_lies_leaves_no_copy(frames: list[Any], says: str, struck: bool) -> None:
    async def main(nursery: trio.Nursery) -> None:
        fetched, network = await lied_to(nursery, frames, -1)
        assert isinstance(fetched.event, KeepFailed) and says in fetched.event.reason
        assert fetched.copy is None and bool(network.struck) == struck

    run(main)


@pytest.mark.parametrize(
    ("tale", "struck"),
    [
        ([StateHistory(COMMITS[9:12]), StateHistory(COMMITS[11:14])], True),
        ([StateHistory(COMMITS[:2])], True),
        ([StateHistory((replace(COMMITS[10], step=10**9),))], True),
        ([StateHistory((replace(COMMITS[10], norms=(1.0,) * 99),))], True),
        ([CHUNKS[0]], True),
        ([StateHistory(COMMITS[9:12])], False),
    ],
)
def test_a_tall_tale_is_not_believed_but_the_weights_are_there(tale: list[Any], struck: bool) -> None:
    async def main(nursery: trio.Nursery) -> None:
        fetched, network = await lied_to(nursery, [HEADER, *CHUNKS, *tale], 5)
        assert isinstance(fetched.event, Kept) and fetched.copy is not None and fetched.history == ()
        assert bool(network.struck) == struck

    run(main)
