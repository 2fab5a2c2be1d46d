"""Weights move and blend: a newcomer and its donors over real streams, with compute faked in plain Python."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.links.streams import FrameReader, write_frame
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError, LayersMissing
from ftnode.node.weights import donor as donor_module
from ftnode.node.weights import reading, source
from ftnode.node.weights.installer import InstallOutcome
from ftnode.node.weights.reading import take_slot
from ftnode.protocol.wire.frames import STATE_PROTOCOL, Refusal, StateChunk, StateHeader, StateRequest, read_transfer
from ftnode.protocol.words.effects import Install
from ftnode.protocol.words.events import Installed, InstallFailed
from ftnode.protocol.words.messages import Donor, Plan
from ftnode.protocol.words.types import Attempt, Peer, Rung, Version
from tests.node.weights.lending import BASE, CHUNK, NUMBERS, SETTINGS, Host, Network, digest


def plan(stage: int, rung: Rung, *donors: tuple[int, str]) -> Install:
    lent = tuple(Donor(donor_stage, Peer(name, 1), ()) for donor_stage, name in donors)
    return Install(Plan(stage, Peer("me", 1), rung, lent, 1.1, "because", None), BASE)


def run(main: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(bounded)


async def install(nursery: trio.Nursery, effect: Install, *hosts: Host) -> tuple[InstallOutcome, Host, Network]:
    me, network = Host("me"), Network(nursery, *hosts)
    outcome = await me.installer(network).install(effect)
    assert me.arena.free == me.arena.slots
    await trio.testing.wait_all_tasks_blocked()  # the donors notice that their streams are closed
    assert all(host.arena.free == host.arena.slots and not host.compute.exports for host in hosts)
    return outcome, me, network


def test_a_blend_is_weighted_by_omega() -> None:
    async def main(nursery: trio.Nursery) -> None:
        low, high = Host("low").holds(1, 0.0, 1.0), Host("high").holds(3, 100.0, 3.0)
        outcome, me, _ = await install(nursery, plan(2, Rung.BLEND, (1, "low"), (3, "high")), low, high)
        version, numbers, _, count = me.compute.stages[2]
        assert numbers == [0.25 * n + 0.75 * (100 + n) for n in range(NUMBERS)]
        assert (version, count) == (BASE, 0)  # a new optimiser
        assert isinstance(outcome.event, Installed)
        assert (outcome.event.bytes_fetched, outcome.event.blend_seconds) == (2 * 4 * NUMBERS, 0.25)
        assert outcome.event.digest == digest(numbers)
        assert [(donor.stage, donor.omega, donor.weight) for donor in outcome.donors] == [
            (1, 1.0, 0.25),
            (3, 3.0, 0.75),
        ]
        assert [donor.digest for donor in outcome.donors] == [low.exported[0].digest, high.exported[0].digest]
        assert low.exported[0].to == "newcomer"
        assert me.compute.calls[0][1]["rate_factor"] == 1.1

    run(main)


@pytest.mark.parametrize(("said", "most"), [(1e12, 1.0), (3.0, 0.75), (0.0, 0.0)])
def test_a_donor_that_says_another_norm_moves_its_share_and_nothing_else(said: float, most: float) -> None:
    """It is not defended, as SECURITY.md says. What is made lies between the right weights of both."""

    async def main(nursery: trio.Nursery) -> None:
        low, high = Host("low").holds(1, 0.0, 1.0), Host("high").holds(3, 100.0, said)
        outcome, me, _ = await install(nursery, plan(2, Rung.BLEND, (1, "low"), (3, "high")), low, high)
        assert isinstance(outcome.event, Installed), outcome.event
        assert me.compute.stages[2][1] == pytest.approx([100 * most + n for n in range(NUMBERS)])
        assert [donor.weight for donor in outcome.donors] == pytest.approx([1 - most, most])

    run(main)


def test_a_donor_that_says_a_norm_which_cannot_be_lends_nothing() -> None:
    async def main(nursery: trio.Nursery) -> None:
        low, high = Host("low").holds(1, 0.0, 1.0), Host("high").holds(3, 100.0, -1.0)
        outcome, *_ = await install(nursery, plan(2, Rung.BLEND, (1, "low"), (3, "high")), low, high)
        assert isinstance(outcome.event, InstallFailed) and outcome.event.donor == Peer("high", 1)

    run(main)


@pytest.mark.parametrize("checks", [0.0, 0.02])
def test_what_others_lend_for_a_new_stage_is_kept_to_be_tried(checks: float) -> None:
    """Where the run has checks; what is here already needs no trial."""

    async def main(nursery: trio.Nursery) -> None:
        me, high = Host("me").holds(1, 0.0, 1.0), Host("high").holds(3, 100.0, 3.0)
        me.settings = replace(SETTINGS, checks=checks)
        outcome = await me.installer(Network(nursery, high)).install(plan(2, Rung.BLEND, (1, "me"), (3, "high")))
        assert isinstance(outcome.event, Installed)
        assert me.compute.kept == ({3: [100.0 + n for n in range(NUMBERS)]} if checks else {})

    run(main)


@pytest.mark.parametrize(
    ("change", "low_share"),
    [
        ({}, 1 / 3),  # 1 · 1 and 4 · ½
        ({"weighting": "uniform"}, 2 / 3),
        ({"weighting": "norm"}, 1 / 2),  # 1 · 1 and 2 · ½
        ({"weighting": "inverse-norm"}, 4 / 5),  # 2 · 1 and 1 · ½
        ({"norms": "after-clipping", "clip": 1.0}, 2 / 3),
    ],
)
def test_survivors_far_away_count_less(change: dict[str, Any], low_share: float) -> None:
    """Stages 2 and 3 are lost: stage 2 is made of stage 1, one away, and stage 4, two away."""

    async def main(nursery: trio.Nursery) -> None:
        low, high = Host("low").holds(1, 0.0, 1.0), Host("high").holds(4, 100.0, 4.0)
        me = Host("me")
        me.settings = replace(SETTINGS, **change)
        effect = plan(2, Rung.INTERPOLATE, (1, "low"), (4, "high"))
        outcome = await me.installer(Network(nursery, low, high)).install(effect)
        assert isinstance(outcome.event, Installed), outcome.event
        assert [donor.weight for donor in outcome.donors] == pytest.approx([low_share, 1 - low_share])
        version, numbers, _, count = me.compute.stages[2]
        assert numbers == pytest.approx([n + (1 - low_share) * 100 for n in range(NUMBERS)])
        assert (version, count, set(me.compute.moments[2])) == (BASE, 0, set())
        assert outcome.copy_step is None

    run(main)


@pytest.mark.parametrize("rung", [Rung.BLEND, Rung.COPY])
def test_moments_are_blended_where_the_manifest_says_so(rung: Rung) -> None:
    async def main(nursery: trio.Nursery) -> None:
        low, high = Host("low").holds(1, 0.0, 1.0), Host("high").holds(3, 100.0, 3.0)
        low.compute.stages[1] = (*low.compute.stages[1][:3], 1)
        high.compute.stages[3] = (*high.compute.stages[3][:3], 5)
        me = Host("me")
        me.settings = replace(SETTINGS, optimiser_state="blended")
        donors = ((1, "low"), (3, "high"))[: 2 if rung is Rung.BLEND else 1]
        outcome = await me.installer(Network(nursery, low, high)).install(plan(2, rung, *donors))
        assert isinstance(outcome.event, Installed), outcome.event
        shift, count = (75.0, 4) if rung is Rung.BLEND else (0.0, 1)  # 1 / 4 + 3 · 5 / 4
        assert me.compute.stages[2][1] == [n + shift for n in range(NUMBERS)]
        assert me.compute.moments[2] == [0.5 * n + shift for n in range(2 * NUMBERS)]
        assert me.compute.stages[2][2:] == (0.0, count)
        assert next(fields for op, fields in me.compute.calls if op == "install_begin")["rate_factor"] == 1.1

    run(main)


def test_a_replica_takes_the_optimiser_along() -> None:
    async def main(nursery: trio.Nursery) -> None:
        donor = Host("donor").holds(2, 7.0, 2.0)
        outcome, me, _ = await install(nursery, plan(2, Rung.REPLICA, (2, "donor")), donor)
        assert me.compute.stages[2] == donor.compute.stages[2]
        assert me.compute.moments[2] == donor.compute.moments[2]
        assert isinstance(outcome.event, Installed)
        assert donor.compute.calls[0] == (
            "export_begin",
            {"stage": 2, "step": 5, "parts": "all", "encoding": "raw", "freeze": False},
        )

    run(main)


def test_a_stage_of_our_own_is_lent_without_the_network(tmp_path: Path) -> None:
    async def main(nursery: trio.Nursery) -> None:
        me, other = Host("me", tmp_path).holds(1, 0.0, 1.0), Host("other").holds(3, 8.0, 1.0)
        effect = plan(2, Rung.BLEND, (1, "me"), (3, "other"))
        outcome = await me.installer(Network(nursery, other), tmp_path).install(effect)
        assert isinstance(outcome.event, Installed)
        assert me.compute.stages[2][1] == [4.0 + n for n in range(NUMBERS)]
        assert [export.to for export in me.exported] == ["me"]
        assert me.arena.free == me.arena.slots
        lent, rebuilt = tmp_path / me.exported[0].dump, tmp_path / outcome.dump
        assert hashlib.blake2b(lent.read_bytes(), digest_size=16).hexdigest() == me.exported[0].digest
        assert hashlib.blake2b(rebuilt.read_bytes(), digest_size=16).hexdigest() == outcome.event.digest

    run(main)


def test_initial_weights_need_nobody() -> None:
    async def main(nursery: trio.Nursery) -> None:
        outcome, me, _ = await install(nursery, plan(2, Rung.INITIAL))
        assert outcome.event == Installed(2, BASE, 0, 0.0, 0.0, digest([0.0] * NUMBERS))
        assert me.compute.calls == [("initialise", {"stage": 2, "commit": "c5"})]

    run(main)


class FirstLayers:
    """Of a model, of which a part is frozen or not; what was asked of it, in order."""

    def __init__(self, frozen: bool, missing: str = "") -> None:
        self.frozen, self.missing = frozen, missing
        self.asked: list[int] = []
        self.spoilt: list[int] = []

    async def layers(self, stage: int) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self.asked.append(stage)
        if self.missing:
            raise LayersMissing(self.missing)
        return {"dtype": "float32", "layers": [stage]}

    def spoiled(self, stage: int) -> None:
        self.spoilt.append(stage)


def test_a_lost_stage_begins_again_with_the_model_as_the_weights_of_the_base() -> None:
    async def main(nursery: trio.Nursery) -> None:
        me = Host("me")
        installer = me.installer(Network(nursery))
        installer.first = FirstLayers(frozen=False)
        outcome = await installer.install(plan(2, Rung.FIRST))
        assert outcome.event == Installed(2, BASE, 0, 0.0, 0.0, digest([0.0] * NUMBERS))
        assert me.compute.stages[2][0] == BASE
        (op, fields) = me.compute.calls[0]
        assert (op, fields["first"]) == ("initialise", {"dtype": "float32", "layers": [2]})

    run(main)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_frozen_is_read_beside_what_a_donor_gives(frozen: bool) -> None:
    async def main(nursery: trio.Nursery) -> None:
        me, donor = Host("me"), Host("donor").holds(2, 7.0, 2.0)
        installer = me.installer(Network(nursery, donor))
        installer.first = first = FirstLayers(frozen)
        outcome = await installer.install(plan(2, Rung.REPLICA, (2, "donor")))
        assert isinstance(outcome.event, Installed) and me.compute.stages[2] == donor.compute.stages[2]
        (fields,) = [fields for op, fields in me.compute.calls if op == "install_begin"]
        assert fields.get("first") == ({"dtype": "float32", "layers": [2]} if frozen else None)
        assert bool(first.asked) is frozen

    run(main)


def test_no_donor_waits_for_layers_that_cannot_be_had() -> None:
    async def main(nursery: trio.Nursery) -> None:
        me, donor = Host("me"), Host("donor").holds(2, 7.0, 2.0)
        installer = me.installer(Network(nursery, donor))
        installer.first = FirstLayers(True, "nobody has them")
        outcome = await installer.install(plan(2, Rung.REPLICA, (2, "donor")))
        assert outcome.event == InstallFailed(2, BASE, None, "nobody has them")
        assert not donor.compute.calls, "it was not asked"

    run(main)


def test_a_layer_that_is_not_what_it_should_be_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(nursery: trio.Nursery) -> None:
        me, donor = Host("me"), Host("donor").holds(2, 7.0, 2.0)
        installer = me.installer(Network(nursery, donor))
        installer.first = first = FirstLayers(frozen=True)

        def refuse(*_arguments: object, **_fields: object) -> None:
            raise ComputeError("layers", "a layer of the first weights does not have its hash", 2)

        monkeypatch.setattr(me.compute, "install_begin", refuse)
        outcome = await installer.install(plan(2, Rung.REPLICA, (2, "donor")))
        assert isinstance(outcome.event, InstallFailed) and "does not have its hash" in outcome.event.reason
        assert first.spoilt == [2]

    run(main)


def test_the_next_donor_is_asked_when_one_fails() -> None:
    async def main(nursery: trio.Nursery) -> None:
        second = Host("second").holds(2, 7.0, 2.0)
        outcome, _, _ = await install(nursery, plan(2, Rung.REPLICA, (2, "gone"), (2, "second")), second)
        assert isinstance(outcome.event, Installed)
        assert [donor.peer.id for donor in outcome.donors] == ["second"]

    run(main)


def test_the_donor_waits_for_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_module, "VERSION_POLL_SECONDS", 60.0)  # so that only `advanced` wakes it

    async def main(nursery: trio.Nursery) -> None:
        donor = Host("donor").holds(1, 0.0, 1.0, Version(4, "c4", Attempt(1, 1)))
        me, network = Host("me"), Network(nursery, donor)
        outcomes: list[InstallOutcome] = []

        async def fetch() -> None:
            outcomes.append(await me.installer(network).install(plan(2, Rung.COPY, (1, "donor"))))

        async with trio.open_nursery() as fetching:
            fetching.start_soon(fetch)
            while not donor.compute.calls:
                await trio.lowlevel.checkpoint()
            donor.holds(1, 0.0, 1.0)
            donor.donor.advanced()
        assert isinstance(outcomes[0].event, Installed)

    run(main)


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (Version(4, "c4", Attempt(1, 1)), "not at that step"),
        (Version(5, "other", Attempt(1, 2)), "another history"),
    ],
)
def test_weights_of_another_version_are_not_lent(held: Version, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_module, "VERSION_SECONDS", 0.02)

    async def main(nursery: trio.Nursery) -> None:
        donor = Host("donor").holds(1, 0.0, 1.0, held)
        outcome, me, network = await install(nursery, plan(2, Rung.COPY, (1, "donor")), donor)
        assert isinstance(outcome.event, InstallFailed)
        assert outcome.event.donor == donor.peer
        assert says in outcome.event.reason
        assert 2 not in me.compute.stages
        assert network.struck == []  # to be behind is no offence

    run(main)


def test_a_donor_of_another_size_is_turned_down() -> None:
    async def main(nursery: trio.Nursery) -> None:
        donor = Host("donor").holds(1, 0.0, 1.0, numbers=NUMBERS + 1)
        outcome, _, _ = await install(nursery, plan(2, Rung.COPY, (1, "donor")), donor)
        assert isinstance(outcome.event, InstallFailed) and "bytes in" in outcome.event.reason

    run(main)


@pytest.mark.parametrize("op", ["install_begin", "install_chunk", "install_end"])
def test_our_own_fault_names_no_donor(op: str) -> None:
    async def main(nursery: trio.Nursery) -> None:
        donors = Host("a").holds(1, 0.0, 1.0), Host("b").holds(3, 0.0, 1.0)
        me = Host("me")
        me.compute.fails = op
        outcome = await me.installer(Network(nursery, *donors)).install(plan(2, Rung.BLEND, (1, "a"), (3, "b")))
        assert outcome.event == InstallFailed(2, BASE, None, f"oom: {op} does not fit")
        assert me.arena.free == me.arena.slots

    run(main)


@pytest.mark.parametrize("rung", [Rung.REPLICA, Rung.SHADOW, Rung.HEAD])
def test_numbers_that_are_none_are_their_donors_fault_and_the_next_one_is_asked(rung: Rung) -> None:
    async def main(nursery: trio.Nursery) -> None:
        liar, honest = Host("liar").holds(2, 0.0, 1.0), Host("honest").holds(2, 7.0, 1.0)
        liar.compute.stages[2][1][-1] = float("nan")
        outcome, _, _ = await install(nursery, plan(2, rung, (2, "liar")), liar)
        assert isinstance(outcome.event, InstallFailed)
        assert outcome.event.donor == liar.peer and "not finite" in outcome.event.reason
        outcome, me, _ = await install(nursery, plan(2, rung, (2, "liar"), (2, "honest")), liar, honest)
        assert isinstance(outcome.event, Installed)
        assert me.compute.stages[2][1] == honest.compute.stages[2][1]

    run(main)


def test_of_several_who_are_blended_the_one_with_such_numbers_is_named() -> None:
    async def main(nursery: trio.Nursery) -> None:
        donors = [Host("a").holds(1, 0.0, 1.0), Host("b").holds(3, 0.0, 1.0)]
        donors[1].compute.stages[3][1][0] = float("inf")
        outcome, _, _ = await install(nursery, plan(2, Rung.BLEND, (1, "a"), (3, "b")), *donors)
        assert isinstance(outcome.event, InstallFailed) and outcome.event.donor == donors[1].peer

    run(main)


@pytest.mark.parametrize(("kind", "named"), [("fault", True), ("broken", False), ("invalid", False)])
def test_moments_that_cannot_be_are_their_donors_fault_and_a_failure_of_ours_is_not(kind: str, named: bool) -> None:
    async def main(nursery: trio.Nursery) -> None:
        donor, me = Host("donor").holds(2, 0.0, 1.0), Host("me")
        me.compute.fails, me.compute.fails_by = "install_end", kind
        outcome = await me.installer(Network(nursery, donor)).install(plan(2, Rung.REPLICA, (2, "donor")))
        assert isinstance(outcome.event, InstallFailed)
        assert outcome.event.donor == (donor.peer if named else None)

    run(main)


@pytest.mark.parametrize("op", ["export_begin", "export_chunk"])
def test_a_donor_whose_compute_fails_says_so(op: str) -> None:
    async def main(nursery: trio.Nursery) -> None:
        donor = Host("donor").holds(1, 0.0, 1.0)
        donor.compute.fails = op
        outcome, _, network = await install(nursery, plan(2, Rung.COPY, (1, "donor")), donor)
        assert isinstance(outcome.event, InstallFailed)
        assert outcome.event.donor == donor.peer and "does not fit" in outcome.event.reason
        assert network.struck == []

    run(main)


HEADER = StateHeader(BASE, 1.0, 3, 4 * NUMBERS, "d", 5, 1.0, "raw")
DATA = bytes(CHUNK)
HASH = hashlib.blake2b(DATA, digest_size=16).digest()


@pytest.mark.parametrize(
    ("frames", "says", "struck"),
    [
        ([], "the stream ended", False),
        ([HEADER], "the stream ended", False),
        ([StateChunk(0, HASH)], "a chunk of 64 bytes", True),
        (
            [StateHeader(Version(6, "c6", Attempt(1, 2)), 1.0, 3, 160, "d", 5, 1.0, "raw")],
            "not the state asked for",
            True,
        ),
        ([HEADER, StateChunk(1, HASH)], "something else than chunk 0", True),
        ([HEADER, StateChunk(0, bytes(16))], "does not have its hash", True),
        ([HEADER, StateChunk(0, HASH), HEADER], "something else than chunk 1", True),
        ([HEADER, Refusal("tired", False)], "tired", False),
    ],
)
def test_a_donor_that_breaks_off_or_lies(frames: list[Any], says: str, struck: bool) -> None:
    async def lie(stream: trio.SocketStream) -> None:
        await FrameReader(stream).header()
        for frame in frames:
            await write_frame(stream, frame, memoryview(DATA) if isinstance(frame, StateChunk) else None)

    async def main(nursery: trio.Nursery) -> None:
        me, network = Host("me"), Network(nursery)
        network.answers["liar"] = lie
        outcome = await me.installer(network).install(plan(2, Rung.COPY, (1, "liar")))
        assert isinstance(outcome.event, InstallFailed)
        assert outcome.event.donor == Peer("liar", 1) and says in outcome.event.reason
        assert bool(network.struck) == struck
        assert me.arena.free == me.arena.slots

    run(main)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_answer_that_nobody_thought_of_is_the_donors_fault(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def odd(header: bytes, payload_bytes: int, chunk_bytes_max: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise ZeroDivisionError
        return read_transfer(header, payload_bytes, chunk_bytes_max)

    async def main(nursery: trio.Nursery) -> None:
        monkeypatch.setattr(source, "read_transfer", odd)
        outcome, _, network = await install(nursery, plan(2, Rung.COPY, (1, "other")), Host("other").holds(1, 0.0, 1.0))
        assert isinstance(outcome.event, InstallFailed) and outcome.event.donor == Peer("other", 1)
        assert len(network.struck) == 1 and "cannot digest" in network.struck[0]

    run(main)


def request(
    stage: int, step: int, commit: str, parts: str, run: str = "run", encoding: str = "raw", freeze: bool = False,
    copy: bool = False, since: int = -1,
) -> StateRequest:  # fmt: skip
    return StateRequest(run, stage, step, commit, parts, encoding, freeze, copy, since)


async def ask(nursery: trio.Nursery, host: Host, wanted: Any) -> Any:
    stream = await Network(nursery, host).open(host.peer.id, STATE_PROTOCOL)
    await write_frame(stream, wanted)
    return read_transfer(*await FrameReader(stream).header(), CHUNK)


def test_a_donor_refuses_what_it_cannot_serve() -> None:
    async def main(nursery: trio.Nursery) -> None:
        host = Host("donor").holds(1, 0.0, 1.0)
        assert await ask(nursery, host, request(1, 5, "c5", "weights", run="other")) == Refusal("another run", False)
        for wrong in (request(1, 5, "c5", "everything"), HEADER):
            with pytest.raises(EOFError):
                await ask(nursery, host, wrong)
        assert len(host.struck) == 2
        async with host.donor.lend(request(1, 5, "c5", "all"), "x"):  # other parts at the same time do no harm
            assert isinstance(await ask(nursery, host, request(1, 5, "c5", "weights")), StateHeader)
        assert isinstance(await ask(nursery, host, request(1, 5, "c5", "weights")), StateHeader)

    run(main)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (request(9, 5, "c5", "weights"), Refusal("no weights of stage 9 here", True)),
        (request(1, 4, "c4", "weights"), Refusal("the weights here are of step 5, not 4", False)),
        (request(1, 5, "x", "weights"), Refusal("the weights after step 5 are of another history", False)),
    ],
)
def test_a_donor_that_will_never_have_it_says_so_at_once(
    request_: StateRequest, answer: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(donor_module, "VERSION_SECONDS", 60.0)

    async def main(nursery: trio.Nursery) -> None:
        host = Host("donor").holds(1, 0.0, 1.0)
        assert await ask(nursery, host, request_) == answer
        assert host.compute.calls == []  # compute is not asked for every stranger's fancy
        assert host.donor._lendings == []

    run(main)


def test_weights_are_lent_to_members_and_to_each_a_few_at_a_time() -> None:
    wanted = request(1, 5, "c5", "weights")

    async def main(nursery: trio.Nursery) -> None:
        host = Host("donor").holds(1, 0.0, 1.0)
        async with AsyncExitStack() as lent:
            for _ in range(donor_module.LENDINGS_PER_PEER_MAX):
                await lent.enter_async_context(host.donor.lend(wanted, "newcomer"))
            assert await ask(nursery, host, wanted) == Refusal("busy lending to you", True)
            async with host.donor.lend(wanted, "another"):
                pass
        assert host.donor._lendings == []
        host.members.clear()
        assert await ask(nursery, host, wanted) == Refusal("no member of the run, as far as we know", True)
        assert host.struck == []  # it may know a newer view

    run(main)


@pytest.mark.parametrize(
    ("op", "effect"),
    [
        ("initialise", plan(2, Rung.INITIAL)),
        ("install_begin", plan(2, Rung.COPY, (1, "donor"))),
        ("install_end", plan(2, Rung.COPY, (1, "donor"))),
        ("export_begin", plan(2, Rung.COPY, (1, "me"))),
    ],
)
def test_an_installation_ends_when_compute_hangs(op: str, effect: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "COMPUTE_SECONDS", 0.02)
    monkeypatch.setattr(donor_module, "VERSION_SECONDS", 60.0)

    async def main(nursery: trio.Nursery) -> None:
        me, donor = Host("me").holds(1, 0.0, 1.0), Host("donor").holds(1, 0.0, 1.0)
        me.compute.hangs = op
        outcome = await me.installer(Network(nursery, donor)).install(effect)
        assert outcome.event == InstallFailed(2, BASE, None, f"lost: {op} took longer than 0.02 s")
        assert me.arena.free == me.arena.slots

    run(main)


def test_transfers_leave_slots_to_the_step_in_progress() -> None:
    async def main(nursery: trio.Nursery) -> None:
        arena = Arena(CHUNK, 4)
        taken = [await take_slot(arena), await take_slot(arena)]
        with trio.move_on_after(0.05) as waiting:
            await take_slot(arena)
        assert waiting.cancelled_caught and arena.free == 2
        arena.release(taken[0])
        await take_slot(arena)

    run(main)
