"""A status survives its journey, strangers' bytes do not get far, and watchers cannot wear a node out."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from rich.console import Console

from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.watch import status as status_module
from ftnode.node.watch.status import (
    CommitPoint,
    CopyRow,
    Member,
    RecoveryRow,
    Speaker,
    StageRow,
    SwarmStatus,
    UndigestedRow,
    decode_status,
    encode_status,
    from_mapping,
    serve_status,
    status_handler,
    to_mapping,
)
from ftnode.node.watch.status_table import plain_lines, render
from ftnode.protocol.words.errors import PeerError

WHO = Speaker("12D3KooWvolunteer", "0.1.0", "cpu", "volunteer")
FULL = SwarmStatus(
    WHO, run="abcdef", name="tiny", step=7, steps=300, loss=2.5, validation=2.4, tokens_per_second=1234.0,
    leader="12D3KooWleader", lineage="l1", view=3, state="training", waiting="",
    stages=(StageRow(0, "12D3KooWvolunteer", "busy", 0, 7, 3, 1, 0.5), StageRow(1, "", "vacant", 2, 0, 0, 0, 0.0)),
    standbys=("12D3KooWstandby",),
    recoveries=(RecoveryRow(1, 6, "blend", 3, "12D3KooWlost", "12D3KooWnew", "silent", 2.5),),
    commits=(CommitPoint(6, 2.6, 0.5), CommitPoint(7, 2.5, 0.5)),
    copies=(CopyRow(0, "12D3KooWother", 6, 1_500_000), CopyRow(3, "12D3KooWother", 4, 500_000)), skipped_steps=2,
    undigested=(UndigestedRow("/ftnode/step/3", "links/inbound.py:88 (KeyError)", 2),
                UndigestedRow("/ftnode/who/1", "watch/peer_latency.py:9 (TypeError)", 1)),
    members=(Member("abcdef", "tiny", "12D3KooWother", ("/ip4/127.0.0.1/tcp/1",)),),
)  # fmt: skip


@pytest.mark.parametrize("status", [FULL, SwarmStatus(WHO)])
def test_a_status_survives_its_journey(status: SwarmStatus) -> None:
    assert decode_status(encode_status(status)) == status


def test_a_peer_is_not_believed_what_the_author_says() -> None:
    said = replace(FULL, announcement="send money")
    assert decode_status(encode_status(said)) == FULL


def test_a_reader_ignores_fields_of_the_future_and_fills_in_those_of_the_past() -> None:
    mapping = to_mapping(FULL)
    mapping["mood"] = "good"
    mapping["stages"][0]["colour"] = "red"
    del mapping["members"]
    assert from_mapping(mapping) == replace(FULL, members=())


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"format": None}, {"speaker": None}, {"speaker": {"peer": "x"}}, {"step": "7"}, {"step": True},
        {"loss": float("nan")}, {"loss": float("inf")}, {"loss": "x"}, {"stages": {}}, {"stages": [[]]},
        {"stages": [{"stage": 1}]}, {"standbys": [1]}, {"standbys": "ab"}, {"commits": [{}] * 601},
        {"name": "x" * 9999},
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_a_peer_error(change: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        from_mapping(to_mapping(FULL) | change)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc0", b"\x91" * 9000, msgpack.packb(msgpack.ExtType(5, b""))])
def test_odd_bytes_are_a_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        decode_status(data)


def test_spoiled_bytes_are_a_status_or_a_peer_error() -> None:
    chance, whole, refused = random.Random(2), encode_status(FULL), 0
    for _ in range(3000):
        spoiled = bytearray(whole)
        spoiled[chance.randrange(len(whole))] = chance.randrange(256)
        try:
            decode_status(bytes(spoiled))
        except PeerError:
            refused += 1
    assert refused > 300


def on_virtual_time(test: Any) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


def test_polls_on_one_stream_see_the_newest_and_are_rate_bounded() -> None:
    async def main() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        step = 0

        def snapshot() -> SwarmStatus:
            nonlocal step
            step += 1
            return replace(FULL, step=step)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_status, theirs, lambda: encode_status(snapshot()))
            start = trio.current_time()
            for _ in range(50):
                await write_frame(ours, msgpack.packb({"format": 1}))
            seen = [decode_status(await read_frame(ours.receive_some, 1 << 20)).step for _ in range(50)]
            assert seen == list(range(1, 51))
            assert trio.current_time() - start > 48.5 * status_module.POLL_SECONDS_MIN
            await ours.aclose()

    on_virtual_time(main)


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\x91", b"\x00\x00\x00\x01\x01", b"", b"\x00"])
def test_a_watcher_that_sends_nonsense_or_nothing_is_dropped(sent: bytes) -> None:
    async def main() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        await ours.send_all(sent)
        with trio.fail_after(status_module.IDLE_SECONDS + 1):
            await serve_status(theirs, lambda: encode_status(FULL))

    on_virtual_time(main)


def test_all_who_look_at_once_get_one_look() -> None:
    async def main() -> None:
        looks = 0

        def snapshot() -> SwarmStatus:
            nonlocal looks
            looks += 1
            return replace(FULL, step=looks)

        handler = status_handler(snapshot)
        pairs = [trio.testing.memory_stream_pair() for _ in range(8)]
        async with trio.open_nursery() as nursery:
            for number, (_, theirs) in enumerate(pairs):
                nursery.start_soon(handler, f"watcher{number}", theirs)
            for ours, _ in pairs:
                await write_frame(ours, msgpack.packb({"format": 1}))
            assert {decode_status(await read_frame(ours.receive_some, 1 << 20)).step for ours, _ in pairs} == {1}
            for ours, _ in pairs:
                await ours.aclose()
        assert looks == 1

    on_virtual_time(main)


def test_a_status_that_cannot_be_made_costs_the_watcher_not_the_node(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> SwarmStatus:
        raise KeyError("a view that changed meanwhile")

    async def main() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        await write_frame(ours, msgpack.packb({"format": 1}))
        await serve_status(theirs, lambda: encode_status(broken()))

    on_virtual_time(main)
    assert "a view that changed meanwhile" in caplog.text


def test_a_watcher_that_reads_nothing_is_dropped() -> None:
    async def main() -> None:
        ours, theirs = trio.testing.lockstep_stream_pair()
        async with trio.open_nursery() as nursery:
            with trio.fail_after(status_module.WRITE_SECONDS + 1):
                nursery.start_soon(write_frame, ours, msgpack.packb({"format": 1}))
                await serve_status(theirs, lambda: encode_status(FULL))

    on_virtual_time(main)


def test_too_many_watchers_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "WATCHERS_MAX", 2)

    async def main() -> None:
        handle = status_handler(lambda: FULL)
        streams = [trio.testing.memory_stream_pair() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for _, theirs in streams[:2]:
                nursery.start_soon(handle, "peer", theirs)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(1):
                await handle("peer", streams[2][1])  # type: ignore[arg-type]
            for ours, _ in streams[:2]:
                await ours.aclose()
        with trio.move_on_after(1) as scope:
            await handle("peer", trio.testing.memory_stream_pair()[1])  # type: ignore[arg-type]
        assert scope.cancelled_caught, "there is room again"

    on_virtual_time(main)


def test_nobody_alone_keeps_others_from_looking() -> None:
    """It asks now and then, so that its streams stay open."""

    async def main() -> None:
        handle = status_handler(lambda: FULL)
        async with trio.open_nursery() as nursery:
            for _ in range(status_module.WATCHERS_MAX):
                nursery.start_soon(handle, "greedy", trio.testing.memory_stream_pair()[1])
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == status_module.STREAMS_EACH
            nursery.start_soon(handle, "other", trio.testing.memory_stream_pair()[1])
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == status_module.STREAMS_EACH + 1
            nursery.cancel_scope.cancel()

    on_virtual_time(main)


def test_the_table_says_what_matters() -> None:
    text = "\n".join(plain_lines(FULL))
    for wanted in ("tiny", "step 7 of 300", "loss 2.5000", "validation 2.4000", "1,234", "vacant", "blend", "2.5 s"):
        assert wanted in text
    out = io.StringIO()
    Console(file=out, width=120).print(render(FULL))
    assert "vacant" in out.getvalue()


def test_a_stranger_cannot_write_to_our_terminal() -> None:
    evil = "\x1b[2J[red]\nforged line"
    bad = replace(FULL, name=evil, waiting=evil, trouble=evil, stages=(replace(FULL.stages[0], state=evil, peer=evil),))
    out = io.StringIO()
    Console(file=out, width=200).print(render(bad))
    for text in ("\n".join(plain_lines(bad)), out.getvalue()):
        assert "\x1b" not in text
        assert "\nforged" not in text
        assert "[red]" in text


def test_copies_and_skipped_steps_are_told() -> None:
    lines = plain_lines(FULL)
    assert "copies of the head, stage 3 are kept by 1 volunteer, the oldest of step 4" in lines
    assert "2 steps were skipped" in lines
    assert not any("skipped" in line or "copies" in line for line in plain_lines(SwarmStatus(WHO)))
