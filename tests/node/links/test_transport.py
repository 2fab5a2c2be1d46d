"""Links over real p2pds: frames, handshakes, refusals, strikes, and how soon a killed peer is known as such."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.attention import STRANGER, Attention
from ftnode.node.links.bans import BAN_SECONDS, STRIKE_SECONDS, STRIKES, Strikes
from ftnode.node.links.inbound import COMPUTE_RESERVE
from ftnode.node.links.link import CONTROL_FRAMES_MAX, REFUSAL_PAUSES_SECONDS, refuses
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.streams import RECEIPT, STREAM_ERRORS, FrameReader, read_exactly, write_frame
from ftnode.protocol.wire.frames import (
    CONTROL_LANE,
    STEP_PROTOCOL,
    TENSOR_LANE,
    Hello,
    Refusal,
    Welcome,
    encode_frame,
    read_greeting,
)
from ftnode.protocol.words.errors import LocalError
from ftnode.protocol.words.events import LinkDown, LinkUp, Received, Seen
from ftnode.protocol.words.messages import Message
from ftnode.protocol.words.types import Peer
from tests.node.links.linked_node import (
    BOUNDARY_BYTES,
    SCALE_BYTES,
    VOCABULARY,
    Node,
    boundary,
    limited,
    node,
    send_tensor,
    word,
)


@contextmanager
def killable(home: Path, nonce: int = 1) -> Iterator[tuple[subprocess.Popen[bytes], Peer, tuple[str, ...]]]:
    script = Path(__file__).with_name("transport_peer.py")
    argv = [sys.executable, str(script), str(home), "run", str(nonce), str(BOUNDARY_BYTES)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        peer_id, addresses = json.loads(process.stdout.readline())
        yield process, Peer(peer_id, nonce), tuple(addresses)
    finally:
        process.kill()
        process.wait()


def test_messages_and_tensors_arrive_in_order_and_slots_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:
            await here.meet(there)
            for number in range(6):
                handle = here.arena.take()
                here.arena.view(handle)[:] = bytes([number]) * BOUNDARY_BYTES
                here.transport.send(there.peer, boundary(there.peer, number), handle)
                here.arena.release(handle)  # pinned until written
                event = await there.next(Received)
                assert (event.sender, event.message) == (here.peer, boundary(there.peer, number))
                assert event.handle is not None and event.relay == ""
                assert set(bytes(there.arena.view(event.handle))) == {number}
                there.arena.release(event.handle)
            for number in range(200):
                here.transport.send(there.peer, word(str(number)), None)
            got = [(await there.next(Received)).message for _ in range(200)]
            assert got == [word(str(number)) for number in range(200)]
            assert (here.arena.free, there.arena.free) == (4, 4)

    limited(main)


def test_who_was_dialled_knows_where_to_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:
            here.transport.know(there.peer.id, await there.signed())
            here.transport.send(there.peer, word("a"), None)  # dials by itself
            assert (await there.next(Received)).sender == here.peer
            there.transport.send(here.peer, word("b"), None)
            assert (await here.next(Received)).message == word("b")

    limited(main)


@pytest.mark.alone
def test_a_killed_peer_is_noticed_in_well_under_half_a_second(tmp_path: Path) -> None:
    """No benchmark: heartbeats would take seconds, so half of one tells the mechanisms apart, not the machines."""

    async def main() -> None:
        async with node(tmp_path) as here:
            with killable(tmp_path) as (process, peer, addresses):
                here.p2pd.gate.give([PeerAddress(peer.id, addresses)])
                handle = here.arena.take()
                here.transport.send(peer, boundary(peer), handle)
                here.arena.release(handle)
                await here.next(Received)
                started = trio.current_time()
                os.kill(process.pid, signal.SIGKILL)
                down = await here.next(LinkDown)
                assert down.peer == peer
                noticed = trio.current_time() - started
                while not down.refused:
                    down = await here.next(LinkDown)
                refused = trio.current_time() - started
                print(f"LinkDown after {noticed * 1e3:.1f} ms, refused after {refused * 1e3:.1f} ms")
                assert refused < 0.5
                here.transport.dial(peer)
                assert (await here.next(LinkDown)).refused

    limited(main)


def test_a_port_that_is_being_closed_counts_as_refusing() -> None:
    """A killed p2pd's port accepts for some milliseconds more."""

    async def main() -> None:
        server = trio.socket.socket()
        await server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"
        assert not await refuses([address])

        async def close_after_one_more() -> None:
            for _ in range(len(REFUSAL_PAUSES_SECONDS) + 1):
                (await server.accept())[0].close()
            server.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close_after_one_more)
            assert await refuses([address])

    limited(main)


@pytest.mark.alone
def test_a_killed_peer_that_only_talked_to_us_is_noticed(tmp_path: Path) -> None:
    """We have no link of our own to it: the end of its streams is what tells us."""

    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:
            await there.meet(here)
            await trio.testing.wait_all_tasks_blocked(0.05)
            started = trio.current_time()
            there.p2pd.process.kill()
            down = await here.next(LinkDown)
            assert (down.peer, down.refused) == (there.peer, True)
            assert trio.current_time() - started < 0.5

    limited(main)


def test_the_core_hears_from_which_network_a_peer_is_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the peer signs does not matter."""

    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:
            asked = here.p2pd.connections

            async def elsewhere() -> list[tuple[str, str]]:
                return [(owner, at.replace("127.0.0.1", "8.8.4.4")) for owner, at in await asked()]

            monkeypatch.setattr(here.p2pd, "connections", elsewhere)
            await here.meet(there)
            assert await here.next(Seen) == Seen(there.peer, "8.8.0.0/16")

    limited(main)


def test_another_life_of_the_peer_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:
            await here.meet(there)
            earlier = Peer(there.peer.id, 99)
            here.transport.dial(earlier)
            down = await here.next(LinkDown)  # the only one: the link to the life that answers stays
            assert (down.peer, down.refused) == (earlier, True)
            assert "another life" in down.reason
            here.transport.dial(there.peer)
            assert here.events.receive_nowait() == LinkUp(there.peer), "at once, without a redial"

    limited(main)


def test_a_restart_ends_the_link_to_the_earlier_life(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:
            await here.meet(there)
            await there.p2pd.connect(here.peer.id, await here.p2pd.addresses(), 5)
            stream = await there.p2pd.open(here.peer.id, STEP_PROTOCOL, 5)
            await write_frame(stream, Hello("run", 3, (), "control"))
            down = await here.next(LinkDown)
            assert (down.peer, down.refused) == (there.peer, True)
            await stream.aclose()

    limited(main)


def test_an_earlier_life_of_ours_is_refused_and_we_never_dial_ourselves(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here:
            earlier = Peer(here.peer.id, 99)
            here.transport.send(earlier, word("a"), None)
            assert (await here.next(LinkDown)).refused
            with pytest.raises(LocalError):
                here.transport.dial(here.peer)

    limited(main)


def test_another_run_is_refused_with_both_hashes(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path, run="ours") as here, node(tmp_path, 2, run="theirs") as there:
            here.transport.know(there.peer.id, await there.signed())
            here.transport.dial(there.peer)
            down = await here.next(LinkDown)
            assert down.reason == "manifest hash differs: theirs theirs, ours ours"
            assert here.refusals == [down.reason]

    limited(main)


def test_a_peer_without_the_protocol_is_named_as_such(tmp_path: Path) -> None:
    async def main() -> None:
        identity = take_identity(tmp_path)
        async with node(tmp_path) as here, trio.open_nursery() as nursery:
            bare = await P2pd.start(nursery, identity.path)
            here.p2pd.gate.give([PeerAddress(bare.peer_id, await bare.addresses())])
            here.transport.dial(Peer(bare.peer_id, 1))
            down = await here.next(LinkDown)
            assert not down.refused
            assert STEP_PROTOCOL in down.reason and here.refusals == [down.reason]
            bare.close()
            nursery.cancel_scope.cancel()

    limited(main)


@pytest.mark.parametrize("peer_id", ["", "nonsense", "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"])
def test_ids_that_nobody_answers_to(tmp_path: Path, peer_id: str) -> None:
    async def main() -> None:
        async with node(tmp_path) as here:
            here.transport.know(peer_id, ["/not/a/multiaddr", "x"])
            here.transport.dial(Peer(peer_id, 1))
            assert not (await here.next(LinkDown)).refused

    limited(main)


async def knock(stranger: Node, victim: Node, *frames: bytes, lane: str = TENSOR_LANE) -> bytes:
    """Open a stream by hand, say Hello, send `frames`; what comes back until the stream ends."""
    stream = await stranger.p2pd.open(victim.peer.id, STEP_PROTOCOL, 5)
    reader = FrameReader(stream)
    await write_frame(stream, Hello("run", stranger.peer.nonce, (), lane))
    answer = read_greeting(*await reader.header())
    if isinstance(answer, Refusal):
        return answer.reason.encode()
    assert isinstance(answer, Welcome)
    for frame in frames:
        await stream.send_all(frame)
    with trio.fail_after(5):
        await no_more_than_receipts(stream) if lane == TENSOR_LANE else await reader.end()
    return b""


def test_a_p2pd_of_ours_that_does_not_answer_is_no_offence_of_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for connections when a lane is opened anew; on a busy machine that may take too long."""
    strikes: list[tuple[str, str]] = []

    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:
            await here.meet(there)

            async def no_answer() -> tuple[tuple[str, str], ...]:
                raise P2pdError("no answer within 5 s")

            monkeypatch.setattr(there.p2pd, "connections", no_answer)
            there.p2pd.strike = lambda peer_id, reason: strikes.append((peer_id, reason))
            with suppress(*STREAM_ERRORS):
                await knock(here, there, lane=CONTROL_LANE)

    limited(main)
    assert not strikes


async def no_more_than_receipts(stream: trio.SocketStream) -> None:
    """Until the stream ends: each receipt says more than the one before."""
    told = 0
    with suppress(EOFError, OSError):
        while True:
            received, _ = RECEIPT.unpack(await read_exactly(stream, RECEIPT.size))
            assert received > told
            told = received


def test_breaking_the_protocol_costs_the_stream_and_then_a_ban(tmp_path: Path) -> None:
    wrong_size = encode_frame(boundary(Peer("x", 1)), BOUNDARY_BYTES + 1)
    huge_header = b"\xff" * 8
    nonsense = b"\x00\x00\x00\x02\x00\x00\x00\x00\x91\x01"

    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:
            await there.p2pd.connect(here.peer.id, await here.p2pd.addresses(), 5)
            for frame in (wrong_size, huge_header, nonsense):
                assert await knock(there, here, frame) == b""
            assert b"banned" in await knock(there, here)
            here.transport.dial(there.peer)
            down = await here.next(LinkDown)
            assert (down.peer, down.reason) == (there.peer, "banned")
            assert here.arena.free == here.arena.slots

    limited(main)


def test_scales_that_are_none_cost_the_sender_a_strike_each_and_us_nothing(tmp_path: Path) -> None:
    """Not a number, infinite, negative: the third is a ban. Zero and denormal ones are taken before."""
    head = encode_frame(boundary(Peer("x", 1)), BOUNDARY_BYTES)

    def tensor(scale: int) -> bytes:
        content = bytearray(BOUNDARY_BYTES)
        content[SCALE_BYTES - 2 : SCALE_BYTES] = scale.to_bytes(2, "little")
        return head + content

    spoilt = [tensor(scale) for scale in (0x7FC0, 0x7F80, 0xBF80)]
    each_costs_a_strike(tmp_path, [tensor(0x0000), tensor(0x0001)], spoilt)


def test_tokens_that_are_none_cost_the_sender_a_strike_each_and_us_nothing(tmp_path: Path) -> None:
    """The third is a ban. The vocabulary's last token is taken before."""
    head = encode_frame(boundary(Peer("x", 1)), BOUNDARY_BYTES)

    def tensor(token: int) -> bytes:
        return head + bytes(BOUNDARY_BYTES - 4) + token.to_bytes(2, "little") + bytes(2)

    spoilt = [tensor(token) for token in (VOCABULARY, 0x8000, 0xFFFF)]
    each_costs_a_strike(tmp_path, [tensor(0), tensor(VOCABULARY - 1)], spoilt)


def each_costs_a_strike(tmp_path: Path, sound: Sequence[bytes], spoilt: Sequence[bytes]) -> None:
    """All sound tensors are taken before each of the spoilt ones, which cost us nothing. After these comes a ban."""

    async def main() -> None:
        async with node(tmp_path, slots=30) as here, node(tmp_path, 2) as there:
            await there.p2pd.connect(here.peer.id, await here.p2pd.addresses(), 5)
            for tensor in spoilt:
                assert await knock(there, here, *sound, tensor) == b""
                for _ in sound:
                    taken = await here.next(Received)
                    assert taken.handle is not None
                    here.arena.release(taken.handle)
                assert here.arena.free == here.arena.slots
            assert b"banned" in await knock(there, here)

    limited(main)


def test_a_flood_costs_a_stranger_its_connection_at_once(tmp_path: Path) -> None:
    """And a member nothing but time."""
    frame = encode_frame(word("x" * 2000))

    async def main() -> None:
        attention = Attention(lambda peer: peer.nonce == 7)
        async with node(tmp_path, attention=attention) as here, node(tmp_path, 2) as there:
            await there.p2pd.connect(here.peer.id, await here.p2pd.addresses(), 5)
            began, heard = trio.current_time(), 0
            async with trio.open_nursery() as nursery:

                async def hear() -> None:
                    nonlocal heard
                    while True:
                        await here.next(Received)
                        heard += 1

                nursery.start_soon(hear)
                with trio.fail_after(5), suppress(*STREAM_ERRORS, P2pdError):
                    await knock(there, here, frame * 4 * int(STRANGER.messages_at_once), lane=CONTROL_LANE)
                with trio.fail_after(5):
                    while there.peer.id in await here.p2pd.peers():
                        await trio.lowlevel.checkpoint()
                took = trio.current_time() - began
                nursery.cancel_scope.cancel()
            assert heard < 1.5 * STRANGER.messages_at_once and took < 2.0
            answer = b""
            with trio.fail_after(5):
                while not answer:  # who comes back at once is cut off without a word
                    with suppress(*STREAM_ERRORS, P2pdError):
                        await there.p2pd.connect(here.peer.id, await here.p2pd.addresses(), 5)
                        answer = await knock(there, here)
            assert b"banned" in answer
            async with node(tmp_path, 7) as member:
                await member.p2pd.connect(here.peer.id, await here.p2pd.addresses(), 5)
                for _ in range(2 * int(STRANGER.messages_at_once)):
                    member.transport.know(here.peer.id, await here.signed())
                    member.transport.send(here.peer, word("x" * 2000), None)
                    await here.next(Received)

    limited(main)


def test_a_full_arena_costs_the_tensor_not_the_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some slots are left to the outputs of our own tasks."""

    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2, slots=COMPUTE_RESERVE + 2) as there:
            await here.meet(there)
            kept = [there.arena.take() for _ in range(2)]
            send_tensor(here, there, 1)
            with trio.fail_after(5):
                while "no slot" not in caplog.text:
                    await trio.lowlevel.checkpoint()
            assert there.arena.free == COMPUTE_RESERVE
            there.arena.release(kept[0])
            send_tensor(here, there, 3)
            event = await there.next(Received)
            assert event.message == boundary(there.peer, 3) and event.handle is not None
            assert here.arena.free == here.arena.slots

    with caplog.at_level(logging.WARNING):
        limited(main)


def test_a_peer_that_does_not_read_costs_a_bounded_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here:
            silent = Peer("12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq", 1)
            for _ in range(CONTROL_FRAMES_MAX + 1):  # no task runs meanwhile, so nothing is sent
                here.transport.send(silent, word("a"), None)
            assert "does not read" in (await here.next(LinkDown)).reason

    limited(main)


@pytest.mark.parametrize(("message", "handle"), [(word("a"), 1), (boundary(Peer("x", 1)), None)])
def test_a_tensor_without_its_message_is_our_own_error(message: Message, handle: int | None, tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here:
            with pytest.raises(LocalError):
                here.transport.send(Peer("x", 1), message, handle)

    limited(main)


def test_refusal_takes_every_address() -> None:
    async def main() -> None:
        with trio.socket.socket() as closed, trio.socket.socket() as open_:
            for each in (closed, open_):
                await each.bind(("127.0.0.1", 0))
            open_.listen()
            shut, listening = (f"/ip4/127.0.0.1/tcp/{each.getsockname()[1]}" for each in (closed, open_))
            assert await refuses([shut])
            assert not await refuses([shut, listening])
            assert not await refuses([shut, "/ip4/127.0.0.1/udp/9/quic-v1"])
            assert not await refuses([])

    limited(main)


def test_what_a_handler_of_another_protocol_cannot_digest_is_a_strike_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here, node(tmp_path, 2) as there:

            async def odd(peer_id: str, stream: trio.SocketStream) -> None:
                raise ZeroDivisionError

            await here.p2pd.serve("/test/1", odd)
            await there.p2pd.connect(here.peer.id, await here.p2pd.addresses(), 5)
            for _ in range(STRIKES):
                stream = await there.p2pd.open(here.peer.id, "/test/1", 5)
                assert await stream.receive_some(1) == b""
                await stream.aclose()
            assert b"banned" in await knock(there, here)

    limited(main)


def test_strikes_run_out_and_bans_end() -> None:
    strikes = Strikes()
    assert [strikes.add("a", float(now)) for now in range(STRIKES)] == [False] * (STRIKES - 1) + [True]
    until = STRIKES - 1 + BAN_SECONDS
    assert strikes.banned("a", until - 0.1) and not strikes.banned("a", until)
    assert not strikes.banned("b", 0)
    slow = [strikes.add("b", now * STRIKE_SECONDS) for now in range(1, 20)]
    assert not any(slow)
