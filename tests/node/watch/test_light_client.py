"""The light client against a real p2pd. It runs in processes of its own, since libp2p and hivemind share none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import full_addresses
from ftnode.node.links.p2pd import P2pd
from ftnode.node.owner.join_options import Running, note_running
from ftnode.node.watch.status import (
    STATUS_PROTOCOL,
    Member,
    Speaker,
    StageRow,
    SwarmStatus,
    from_mapping,
    status_handler,
)
from tests.node.watch.watching import finished

CLIENT = """
import json, sys
from ftnode.node.manifests.fetch import once_begun
from ftnode.node.watch.status import STATUS_PROTOCOL, decode_status, to_mapping
from ftnode.node.watch.light_client import REQUEST, exchange, fetch_answer, fetch_status, watch
from ftnode.protocol.words.errors import UserError
seen = 0
def show(status):
    global seen
    print(json.dumps(to_mapping(status)), flush=True)
    seen += 1
    if seen == wanted:
        raise KeyboardInterrupt
mode, timeout, run, *addresses = sys.argv[1:]
try:
    if mode == "fetch":
        print(json.dumps(to_mapping(fetch_status(addresses, float(timeout), run))))
    elif mode == "answer":
        print(json.dumps(fetch_answer(addresses, float(timeout), run)[1]))
    elif mode == "exchange":
        ask = lambda left: exchange(addresses, left, run, STATUS_PROTOCOL, REQUEST, 1 << 20)
        reply = once_begun(ask, float(timeout))
        print(json.dumps(to_mapping(decode_status(reply))))
    else:
        wanted = int(mode)
        watch(addresses, 0.1, float(timeout), show, run)
except UserError as error:
    print(json.dumps({"error": str(error), "code": error.exit_code}))
except KeyboardInterrupt:
    print(json.dumps("interrupted"))
heavy = {name.split(".")[0] for name in sys.modules} & {"torch", "hivemind", "numpy"}
assert not heavy, heavy
"""


async def client(mode: str, *addresses: str, timeout: float = 10, run: str = "") -> list[object]:
    """The lines that a client process prints, as JSON."""
    with trio.fail_after(30):
        done = await finished(CLIENT, mode, str(timeout), run, *addresses)
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


class Peers:
    """Real p2pds that answer with what `statuses` holds for their name."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.folder, self.nursery = folder, nursery
        self.statuses: dict[str, SwarmStatus] = {}
        self.p2pds: dict[str, P2pd] = {}
        self.asked: dict[str, int] = {}
        self.asked_thrice = trio.Event()

    async def start(self, name: str, status: SwarmStatus | None, slow: float = 0.0) -> str:
        """Its full multiaddr. A peer without a status does not speak the protocol. `slow`: seconds to its answer."""
        p2pd = await P2pd.start(self.nursery, take_identity(self.folder, name).path)
        self.p2pds[name] = p2pd

        def snapshot() -> SwarmStatus:
            self.asked[name] = self.asked.get(name, 0) + 1
            if self.asked[name] == 3:
                self.asked_thrice.set()
            return self.statuses[name]

        async def handle(peer: str, stream: trio.SocketStream) -> None:
            with trio.move_on_after(slow):
                await trio.sleep_forever()
            await status_handler(snapshot)(peer, stream)

        if status is not None:
            self.statuses[name] = replace(status, speaker=Speaker(p2pd.peer_id, "0", "cpu", "volunteer"))
            await p2pd.serve(STATUS_PROTOCOL, handle)
        return full_addresses(p2pd.peer_id, await p2pd.addresses())[0]

    def member(self, address: str, run: str = "run1") -> Member:
        dialable, _, peer = address.rpartition("/p2p/")
        return Member(run, "tiny", peer, (dialable,))


def with_peers(folder: Path, test: Callable[[Peers], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            peers = Peers(folder, nursery)
            try:
                await test(peers)
            finally:
                for p2pd in peers.p2pds.values():
                    p2pd.close()
            nursery.cancel_scope.cancel()

    trio.run(main)


NOBODY = SwarmStatus(Speaker("", "", "", ""))
TINY = replace(
    NOBODY, run="run1", name="tiny", step=3, steps=9, loss=2.0, stages=(StageRow(0, "x", "s", 0, 3, 1, 0, 0.1),)
)


@pytest.mark.fresh
def test_any_peer_tells_of_the_swarm(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        address = await peers.start("a", TINY)
        assert [from_mapping(line) for line in await client("fetch", address)] == [peers.statuses["a"]]
        dead = address.replace("/tcp/", "/tcp/1").replace(address.split("/")[4], "1")
        assert dead != address
        assert [from_mapping(line) for line in await client("fetch", dead, address)] == [peers.statuses["a"]]

    with_peers(tmp_path, test)


def test_a_meeting_point_leads_to_a_member(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        member = await peers.start("member", TINY)
        point = await peers.start("point", NOBODY)
        assert [from_mapping(line) for line in await client("fetch", point)] == [peers.statuses["point"]]
        gone = Member("run1", "tiny", peers.p2pds["point"].peer_id, ("/ip4/127.0.0.1/tcp/1", "/nonsense"))
        peers.statuses["point"] = replace(peers.statuses["point"], members=(gone, peers.member(member)))
        for given in (point, point.replace("/ip4/127.0.0.1/", "/dns4/localhost/")):
            assert [from_mapping(line) for line in await client("fetch", given)] == [peers.statuses["member"]]
        assert [from_mapping(line) for line in await client("fetch", point, run="run1")] == [peers.statuses["member"]]
        (refused,) = await client("fetch", point, run="run2", timeout=3)
        assert isinstance(refused, dict)
        assert refused["code"] == 69
        assert "run2" in refused["error"]

    with_peers(tmp_path, test)


def test_who_has_heard_the_holders_is_preferred_to_who_has_not(tmp_path: Path) -> None:
    """A standby, which hears its leader alone, may answer first; it has the last word if it is the only one."""

    async def test(peers: Peers) -> None:
        deaf = replace(TINY, stages=(replace(TINY.stages[0], state="unknown"),))
        standby, member = await peers.start("standby", deaf), await peers.start("member", TINY, slow=0.1)
        point = await peers.start("point", NOBODY)
        members = (peers.member(standby), peers.member(member))
        peers.statuses["point"] = replace(peers.statuses["point"], members=members)
        for given in ([point], [standby, member]):
            assert [from_mapping(line) for line in await client("fetch", *given)] == [peers.statuses["member"]]
        peers.p2pds["member"].close()
        for given in ([point], [standby], [standby, point]):
            answer = await client("fetch", *given, timeout=5)
            assert [from_mapping(line) for line in answer] == [peers.statuses["standby"]]

    with_peers(tmp_path, test)


def test_a_meeting_point_of_several_runs(tmp_path: Path) -> None:
    """A list of them; one by its name or id; and no choice where only one of them goes on."""

    async def cli(*arguments: str) -> str:
        command = [sys.executable, "-m", "ftnode.node.cli", *arguments, "--home", str(tmp_path / "watcher")]
        return (await trio.run_process(command, capture_stdout=True)).stdout.decode()

    async def test(peers: Peers) -> None:
        runs = {"tiny": TINY, "large": replace(TINY, run="beef1234", name="large", step=4)}
        told = {name: await peers.start(name, status) for name, status in runs.items()}
        point = await peers.start("point", NOBODY)
        gone = peers.member("/ip4/127.0.0.1/tcp/1/p2p/" + peers.p2pds["point"].peer_id, "dead0000")
        members = [peers.member(told["tiny"]), replace(peers.member(told["large"], "beef1234"), name="large"), gone]
        peers.statuses["point"] = replace(peers.statuses["point"], members=tuple(members))
        (refused,) = await client("fetch", point)
        assert isinstance(refused, dict) and refused["code"] == 64
        assert "large (beef1234), tiny (run1)" in refused["error"]
        for asked, name in (("large", "large"), ("beef1234", "large"), ("beef", "large"), ("tiny", "tiny")):
            assert [from_mapping(line) for line in await client("fetch", point, run=asked)] == [peers.statuses[name]]
        table = (await cli("status", "--peer", point)).splitlines()
        assert [line.split()[:2] for line in table[:3]] == [["run", "id"], ["large", "beef1234"], ["tiny", "run1"]]
        assert "--run" in table[3] and len(table) == 4
        listed = json.loads(await cli("status", "--peer", point, "--json"))
        assert [run["name"] for run in listed["runs"]] == ["large", "tiny"]
        one = json.loads(await cli("status", "--peer", point, "--run", "large", "--json"))
        assert from_mapping(one) == peers.statuses["large"]
        peers.p2pds["large"].close()
        assert [from_mapping(line) for line in await client("fetch", point)] == [peers.statuses["tiny"]]

    with_peers(tmp_path, test)


def test_nodes_of_several_runs_on_this_machine(tmp_path: Path) -> None:
    """The same list, by the notes of the nodes, also when one of them does not answer."""

    async def cli(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "ftnode.node.cli", *arguments, "--home", str(tmp_path)]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    async def test(peers: Peers) -> None:
        for name, run in (("tiny", "run1"), ("large", "beef1234")):
            address = await peers.start(name, replace(TINY, run=run, name=name))
            note_running(tmp_path, Running(os.getpid(), peers.p2pds[name].peer_id, run, (address,), name=name))
        point = await peers.start("point", NOBODY)
        note_running(tmp_path, Running(os.getpid(), peers.p2pds["point"].peer_id, "", (point,)))
        code, table, beside = await cli("status")
        assert [line.split()[:2] for line in table.splitlines()[1:3]] == [["large", "beef1234"], ["tiny", "run1"]]
        assert code == 0 and "--run" in table.splitlines()[3] and f"ftnode status --peer {point}" in beside
        assert [run["name"] for run in json.loads((await cli("status", "--json"))[1])["runs"]] == ["large", "tiny"]
        assert json.loads((await cli("status", "--run", "beef", "--json"))[1])["name"] == "large"
        for command in (["peers"], ["credits"], ["status", "--watch"]):
            code, _, said = await cli(*command)
            assert code == 64 and "large (beef1234), tiny (run1); choose one with --run" in said
        peers.p2pds["large"].close()
        code, table, said = await cli("status", "--timeout", "3")
        assert code == 0 and table.splitlines()[1].split()[0] == "tiny" and "large (beef1234): " in said

    with_peers(tmp_path, test)


def test_an_old_address_does_not_hide_a_member(tmp_path: Path) -> None:
    """Volunteers take a new port at each start, so that remembered addresses are often old ones of living peers."""

    async def test(peers: Peers) -> None:
        member = await peers.start("member", TINY)
        point = await peers.start("point", NOBODY)
        peers.statuses["point"] = replace(peers.statuses["point"], members=(peers.member(member),))
        old = f"/ip4/127.0.0.1/tcp/1/p2p/{peers.p2pds['member'].peer_id}"
        for given in ([point, old], [old, point]):
            assert [from_mapping(line) for line in await client("fetch", *given)] == [peers.statuses["member"]]

    with_peers(tmp_path, test)


def test_only_who_answers_is_told_of(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        member = await peers.start("member", TINY)
        point = await peers.start("point", NOBODY)
        peers.statuses["point"] = replace(peers.statuses["point"], members=(peers.member(member),))
        silent = f"/ip4/127.0.0.1/tcp/1/p2p/{take_identity(tmp_path, 'silent').peer_id}"
        assert await client("answer", silent, point) == [[point, member]]

    with_peers(tmp_path, test)


def test_a_run_that_is_about_to_begin_is_waited_for(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        point, member = await peers.start("point", NOBODY), await peers.start("member", TINY)

        async def begin_once_asked_thrice() -> None:
            await peers.asked_thrice.wait()
            peers.statuses["point"] = replace(peers.statuses["point"], members=(peers.member(member),))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin_once_asked_thrice)
            (answer,) = await client("exchange", point, run="run1", timeout=20)
            assert from_mapping(answer) == peers.statuses["member"]
        (refused,) = await client("exchange", point, run="run2", timeout=3)
        assert isinstance(refused, dict) and "nobody asked knows the run run2, only tiny (run1); " in refused["error"]
        (refused,) = await client("fetch", point, run="TINY")
        assert isinstance(refused, dict) and "only tiny (run1) (capitals count); choose" in refused["error"]

    with_peers(tmp_path, test)


def test_another_peer_at_the_address_is_told_from_one_that_is_away(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        address, other = await peers.start("a", TINY), take_identity(tmp_path, "other").peer_id
        (refused,) = await client("fetch", f"{address.rpartition('/')[0]}/{other}")
        told = f"something answers there, but it is not this peer: it is {peers.p2pds['a'].peer_id}"
        assert isinstance(refused, dict) and told in refused["error"]

    with_peers(tmp_path, test)


def test_who_asks_for_a_run_that_nobody_knows_is_told_of_the_others(tmp_path: Path) -> None:
    """By members of them, and by meeting points that name some."""

    async def test(peers: Peers) -> None:
        member, point = await peers.start("member", TINY), await peers.start("point", NOBODY)
        nobody = await client("fetch", point, run="wrong")
        told = peers.member("/ip4/127.0.0.1/tcp/1/p2p/" + take_identity(tmp_path, "away").peer_id, "run2")
        peers.statuses["point"] = replace(peers.statuses["point"], members=(told,))
        answers = [
            *nobody,
            *await client("fetch", member, run="wrong"),
            *await client("fetch", member, point, run="a" * 32),
        ]
        assert answers == [
            {"error": "nobody asked knows the run wrong; is it running, and through this meeting point?", "code": 69},
            {"error": "who answered takes part in tiny (run1), not in the run wrong; choose that, or ask "
             "another peer", "code": 69},
            {"error": "nobody asked knows the run aaaaaaaaaaaa, only tiny (run1), tiny (run2); choose one of these, "
             "or see that yours is running", "code": 69},
        ]  # fmt: skip

    with_peers(tmp_path, test)


def test_watching_goes_on_when_the_watched_peer_dies(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        second = await peers.start("second", TINY)
        first = await peers.start("first", TINY)
        peers.statuses["first"] = replace(peers.statuses["first"], members=(peers.member(second),))

        async def kill_first_once_watched() -> None:
            await peers.asked_thrice.wait()
            peers.p2pds["first"].close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_first_once_watched)
            *shown, last = await client("12", first, timeout=5)
        speakers = [from_mapping(line).speaker.peer for line in shown]
        assert last == "interrupted"
        assert speakers[0] == peers.p2pds["first"].peer_id
        assert speakers[-1] == peers.p2pds["second"].peer_id
        assert len(speakers) == 12

    with_peers(tmp_path, test)


@pytest.mark.parametrize("kind", ["nobody listens", "another peer answers", "it speaks no status"])
def test_why_nobody_answered(kind: str, tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        address = await peers.start("a", None if kind == "it speaks no status" else TINY)
        if kind == "nobody listens":
            peers.p2pds["a"].close()
        if kind == "another peer answers":
            address = address.rpartition("/")[0] + "/" + take_identity(tmp_path, "other").peer_id
        (refused,) = await client("fetch", address, timeout=5)
        assert isinstance(refused, dict)
        assert refused["code"] == 69
        assert ("Connection refused" if kind == "nobody listens" else "something answers there") in refused["error"]

    with_peers(tmp_path, test)
