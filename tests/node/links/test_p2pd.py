"""p2pd as a child: streams, errors, ports, death. Its messages against what the daemon's own schema says."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ftnode.node.home.identity import Identity, take_identity
from ftnode.node.links import p2pd
from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.listening import check_listen, socket_address
from ftnode.node.links.p2pd import COMING_SECONDS, P2pd, P2pdError
from ftnode.protocol.words.errors import LocalError, UserError
from tests.node.links.linked_node import limited

SECONDS = 5.0


@asynccontextmanager
async def daemon(home: Path, **options: object) -> AsyncIterator[P2pd]:
    identity = take_identity(home)
    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, identity.path, **options)  # type: ignore[arg-type]
        try:
            assert p2pd.peer_id == identity.peer_id
            yield p2pd
        finally:
            p2pd.close()
            identity.release()
            nursery.cancel_scope.cancel()


def test_an_exception_in_a_handler_costs_its_sender_the_stream_and_a_strike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with daemon(tmp_path) as here, daemon(tmp_path) as there:
            strikes: list[tuple[str, str]] = []
            there.strike = lambda peer_id, reason: strikes.append((peer_id, reason))

            async def fail() -> None:
                raise RuntimeError("nobody thought of this")

            async def answer(peer_id: str, stream: trio.SocketStream) -> None:
                match await stream.receive_some(10):
                    case b"odd":
                        raise KeyError("nor of this")
                    case b"within":
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(fail)
                            await trio.sleep_forever()
                await stream.send_all(b"well")

            await there.serve("/test/1", answer)
            await here.connect(there.peer_id, await there.addresses(), SECONDS)
            for sent, answered in ((b"odd", b""), (b"within", b""), (b"even", b"well")):
                stream = await here.open(there.peer_id, "/test/1", SECONDS)
                await stream.send_all(sent)
                assert await stream.receive_some(10) == answered
                await stream.aclose()
            assert [peer_id for peer_id, _ in strikes] == 2 * [here.peer_id]

    limited(main)
    assert "nobody thought of this" in caplog.text and "nor of this" in caplog.text


def test_a_broken_invariant_in_a_handler_ends_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path) as here, daemon(tmp_path) as there:

            async def answer(peer_id: str, stream: trio.SocketStream) -> None:
                raise LocalError("an invariant of ours")

            await there.serve("/test/1", answer)
            await here.connect(there.peer_id, await there.addresses(), SECONDS)
            await here.open(there.peer_id, "/test/1", SECONDS)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        limited(main)
    assert caught.value.subgroup(LocalError) is not None


def test_one_that_does_not_answer_at_its_start_is_a_line_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, and takes too long for what it is asked next."""

    async def no_answer(_self: P2pd, _request: bytes, _seconds: float) -> trio.SocketStream:
        raise P2pdError("no answer within 5 s")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with pytest.raises(UserError, match="no answer within 5 s"):
                await P2pd.start(nursery, take_identity(tmp_path).path)
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(P2pd, "_request", no_answer)
    limited(main)


def test_some_inbound_streams_are_for_members_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers could have all of them, and keep them."""
    monkeypatch.setattr(p2pd, "STRANGERS_STREAMS_MAX", 2)

    async def main() -> None:
        async with daemon(tmp_path) as here, daemon(tmp_path) as there:
            members = set[str]()
            there.knows = members.__contains__

            async def answer(peer_id: str, stream: trio.SocketStream) -> None:
                await stream.send_all(b"well")
                await stream.receive_some(1)

            async def opened() -> tuple[trio.SocketStream, bytes | bytearray]:
                stream = await here.open(there.peer_id, "/test/1", SECONDS)
                with trio.fail_after(SECONDS):
                    try:
                        return stream, await stream.receive_some(4)
                    except trio.BrokenResourceError:
                        return stream, b""

            await there.serve("/test/1", answer)
            await here.connect(there.peer_id, await there.addresses(), SECONDS)
            kept = [await opened() for _ in range(3)]
            assert [said for _, said in kept] == [b"well", b"well", b""]
            members.add(here.peer_id)
            assert (await opened())[1] == b"well"

    limited(main)


def test_streams_both_ways(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path) as here, daemon(tmp_path) as there:

            async def answer(peer_id: str, stream: trio.SocketStream) -> None:
                assert peer_id == here.peer_id
                await stream.send_all((await stream.receive_some(10)).upper())

            await there.serve("/test/1", answer)
            await here.connect(there.peer_id, await there.addresses(), SECONDS)
            assert await here.peers() == (there.peer_id,)
            stream = await here.open(there.peer_id, "/test/1", SECONDS)
            await stream.send_all(b"abc")
            assert await stream.receive_some(10) == b"ABC"
            assert await stream.receive_some(10) == b""
            with pytest.raises(P2pdError, match="protocols not supported"):
                await here.open(there.peer_id, "/test/2", SECONDS)
            await here.disconnect(there.peer_id)
            assert await here.peers() == ()

    limited(main)


def test_a_peer_that_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path) as here:
            stranger = take_identity(tmp_path)
            with pytest.raises(P2pdError, match="connection refused"):
                await here.connect(stranger.peer_id, [free_address()], SECONDS)
            with pytest.raises(P2pdError):
                await here.connect(stranger.peer_id, [], SECONDS)
            stranger.release()

    limited(main)


def test_death_is_noticed_and_nothing_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path) as here:
            folder = Path(here.control_maddr.removeprefix("/unix")).parent
            assert folder.stat().st_mode & 0o777 == 0o700
            here.process.kill()
            await here.died.wait()
            with pytest.raises(P2pdError):
                await here.addresses()
        assert not folder.exists()

    limited(main)


def test_the_folder_of_a_dead_node_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "ftnode-dead").mkdir()
    (tmp_path / "ftnode-dead" / "lock").touch()

    async def main() -> None:
        async with daemon(tmp_path / "home") as here, daemon(tmp_path / "home") as there:
            for p2pd in (here, there):  # the second one has spared the first one's
                await p2pd.addresses()
        assert [path.name for path in tmp_path.glob("ftnode-*")] == []

    (tmp_path / "home").mkdir()
    limited(main)


def test_two_nodes_do_not_share_a_port(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path) as here:
            (address,) = await here.addresses()
            async with trio.open_nursery() as nursery:
                with pytest.raises(UserError, match="in use") as caught:
                    await P2pd.start(nursery, tmp_path / "identity", listen=[address])
            assert caught.value.exit_code == 69

    limited(main)


def test_p2pds_own_complaint_reaches_the_user(tmp_path: Path) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with pytest.raises(UserError, match=r"p2pd did not start: .*no such file"):
                await P2pd.start(nursery, tmp_path / "no-identity")
            nursery.cancel_scope.cancel()

    limited(main)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("nonsense", "no multiaddr"),
        ("/ip4/127.0.0.1/tcp/99999", "no multiaddr"),
        ("/ip4/127.0.0.1", "cannot listen"),
        ("/dns4/localhost/tcp/1", "cannot listen"),
        ("/ip4/127.0.0.1/udp/41337", "cannot listen"),
        ("/ip4/203.0.113.7/tcp/4001", "no address of this machine"),
    ],
)
def test_addresses_that_cannot_be_listened_on(address: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_listen([address])


def test_a_relayed_address_is_not_the_relays_socket() -> None:
    peer = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"
    assert socket_address(f"/ip4/1.2.3.4/tcp/5/p2p/{peer}/p2p-circuit") is None
    assert socket_address("/ip4/1.2.3.4/udp/5/quic-v1") == (socket.AF_INET, socket.SOCK_DGRAM, "1.2.3.4", 5)


def test_requests_as_the_schema_has_them() -> None:
    # protoc --encode=Request over go-libp2p-daemon's p2pd.proto, each behind its length
    assert messages.identify().hex() == "020800"
    assert messages.list_peers().hex() == "020805"
    assert messages.disconnect(b"\x01\x02").hex() == "08" + "0807" + "3a04" + "0a020102"
    assert messages.connect(b"\x01", [b"\x04"], 5).hex() == "0c" + "0801" + "1208" + "0a0101" + "120104" + "1805"
    assert messages.stream_open(b"\x01", "/a", 300).hex() == "0e" + "0802" + "1a0a" + "0a0101" + "12022f61" + "18ac02"
    assert (
        messages.stream_handler("/s", "/a").hex()
        == "11" + "0803" + "220d" + "0a05" + "9003022f73" + "12022f61" + "1800"
    )


def test_the_generated_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    """`make messages` was run after the last change of p2pd_wire.proto. The rest names protoc's version."""
    source = Path(messages.__file__).with_name("p2pd_wire.proto")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={source.parent}", str(source)]
    subprocess.run([*protoc, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"], check=True)
    kept = source.with_name("p2pd_wire_pb2.py").read_text(encoding="utf-8")
    made = (tmp_path / "p2pd_wire_pb2.py").read_text(encoding="utf-8")
    schema = [line for line in kept.splitlines() if "AddSerializedFile(" in line]
    assert schema == [line for line in made.splitlines() if "AddSerializedFile(" in line] != []
    assert (tmp_path / "p2pd_wire_pb2.pyi").read_text() == source.with_name("p2pd_wire_pb2.pyi").read_text()


@pytest.mark.parametrize(
    "others",
    ["import sys; sys.path.insert(0, find_spec('hivemind').submodule_search_locations[0]); import proto.{}_pb2",
     "import libp2p; from libp2p.relay.circuit_v2.pb import circuit_pb2"],
)  # fmt: skip
def test_our_messages_can_be_loaded_beside_those_of(others: str) -> None:
    """One process holds one schema of each name, so a name of ours that another library uses would end the import."""
    for name in ("p2pd", "crypto") if "{}" in others else ("",):
        code = f"from importlib.util import find_spec\nimport ftnode.node.links.p2pd_messages\n{others.format(name)}"
        subprocess.run([sys.executable, "-c", code], check=True)


def test_a_protocol_that_is_not_text_is_refused() -> None:
    peer, protocol = b"\x0a\x01a", b"\x1a\x02/"
    assert messages.read_stream_info(peer + protocol + b"b") == messages.StreamInfo(b"a", "/b", b"")
    with pytest.raises(ValueError):
        messages.read_stream_info(peer + protocol + b"\xa9")


def test_a_refusal_that_is_not_text_is_shown_anyway() -> None:
    assert messages.read_response(b"\x08\x01\x12\x06\x0a\x04no \xff").error == "no \ufffd"
    assert messages.read_response(b"\x08\x01\x12\x00").error == "no reason given"


@pytest.mark.parametrize("data", [b"", b"\x08", b"\x08\x05", b"\x12\x05ab", b"\x0d\x00\x00\x00\x00", b"\xff" * 20])
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(ValueError):
        messages.read_response(data)
    with pytest.raises(ValueError):
        messages.read_stream_info(data)


def free_address() -> str:
    """On loopback, where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}"


def test_the_identity_fixture_is_what_p2pd_reads(tmp_path: Path) -> None:
    identity: Identity = take_identity(tmp_path)
    identity.release()

    async def main() -> None:
        async with daemon(tmp_path) as here:
            assert here.peer_id == identity.peer_id

    limited(main)


def test_a_peer_that_comes_while_it_is_dialled_in_vain_counts_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, listen=("/ip6/::1/tcp/0",)) as here, daemon(tmp_path) as there:
            (silent,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            old = f"/ip4/127.0.0.1/tcp/{silent.socket.getsockname()[1]}"
            there.gate.give([PeerAddress(here.peer_id, (old,))])
            here.gate.give([PeerAddress(there.peer_id, await there.addresses())])
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(there.connect, here.peer_id, (old,), SECONDS)
                taken = await silent.accept()  # and says nothing
                await here.connect(there.peer_id, await there.addresses(), SECONDS)
            assert trio.current_time() - began < SECONDS / 2
            await trio.aclose_forcefully(taken)
            await silent.aclose()

    limited(main)


def test_who_is_about_to_come_is_waited_for_and_not_for_long(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path) as here, daemon(tmp_path) as there:
            here.gate.give([PeerAddress(there.peer_id, await there.addresses())])
            await here.connect(there.peer_id, await there.addresses(), SECONDS)
            await there.disconnect(here.peer_id, it_comes=True)
            while await here.is_connected(there.peer_id):
                await trio.lowlevel.checkpoint()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(there.arrival, here.peer_id)
                await here.connect(there.peer_id, await there.addresses(), SECONDS)
            assert await there.is_connected(here.peer_id)
            await there.disconnect(here.peer_id, it_comes=True)
            began = trio.current_time()
            await there.arrival(here.peer_id)
            assert COMING_SECONDS / 2 < trio.current_time() - began < 3 * COMING_SECONDS
            began = trio.current_time()
            await there.arrival(here.peer_id)
            assert trio.current_time() - began < COMING_SECONDS / 2, "once"

    limited(main)


def test_where_there_is_no_way_p2pd_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail, and then refuse for some seconds to try again."""

    async def main() -> None:
        async with daemon(tmp_path) as here, daemon(tmp_path) as there:
            here.gate.give([PeerAddress(there.peer_id, await there.addresses())])
            monkeypatch.setattr(p2pd, "has_way", lambda address: False)
            with pytest.raises(P2pdError, match="network is unreachable"):
                await here.connect(there.peer_id, await there.addresses(), SECONDS)
            monkeypatch.undo()
            await here.connect(there.peer_id, await there.addresses(), SECONDS)

    limited(main)
