"""Over real p2pds: whatever a stranger says about addresses, nobody connects to ports that are not the stranger's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from ftnode.lab.hostile.foreign_addresses import OTHER_HOSTS, PORTS, SAME_HOST, ForeignPorts, lists, open_ports
from ftnode.lab.hostile.forgeries import Alias
from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.dial_back import KNOCK_PROTOCOL, KNOCK_SECONDS, ask, knock_handler
from ftnode.node.links.dial_gate import ENDPOINT
from ftnode.node.links.link import LinkBroken
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.streams import FrameReader, write_frame
from ftnode.protocol.wire.frames import CONTROL_LANE, STEP_PROTOCOL, Hello, Welcome, read_greeting
from ftnode.protocol.words.events import LinkDown
from ftnode.protocol.words.types import Peer
from tests.node.links.linked_node import Node, limited, node

Attack = Callable[[Node, P2pd, Alias, ForeignPorts], Awaitable[None]]


def attacked(home: Path, attack: Attack, announced: bool = False) -> None:
    """`announced`: the stranger's p2pd tells ours the foreign ports by libp2p's own identify, too."""

    async def main() -> None:
        identity = take_identity(home)
        alias = Alias(identity.key, Peer(identity.peer_id, 9))
        async with open_ports() as ports, node(home) as victim, trio.open_nursery() as nursery:
            announce = ports.addresses if announced else ()
            stranger = await P2pd.start(nursery, identity.path, announce=announce)
            await victim.p2pd.serve(KNOCK_PROTOCOL, knock_handler(victim.p2pd))
            stranger.gate.give([PeerAddress(victim.peer.id, await victim.p2pd.addresses())])
            await attack(victim, stranger, alias, ports)
            stranger.close()
            nursery.cancel_scope.cancel()
        identity.release()

    limited(main)


async def greet(stranger: P2pd, victim: Node, addresses: tuple[str, ...]) -> None:
    """Say Hello, and be gone."""
    await stranger.connect(victim.peer.id, await victim.p2pd.addresses(), 5)
    stream = await stranger.open(victim.peer.id, STEP_PROTOCOL, 5)
    await write_frame(stream, Hello("run", 9, addresses, CONTROL_LANE))
    assert isinstance(read_greeting(*await FrameReader(stream).header()), Welcome)
    await stranger.disconnect(victim.peer.id)
    while await victim.p2pd.is_connected(stranger.peer_id):
        await trio.lowlevel.checkpoint()


async def dial_in_vain(victim: Node, peer: Peer) -> str:
    """Why the victim has no link, with nothing of its last try left."""
    victim.transport.dial(peer)
    return (await victim.next(LinkDown)).reason


@pytest.mark.parametrize("announced", [False, True])
def test_a_hello_has_nobody_dialled(tmp_path: Path, announced: bool) -> None:
    async def attack(victim: Node, stranger: P2pd, alias: Alias, ports: ForeignPorts) -> None:
        for addresses in lists(ports.addresses, alias):
            await greet(stranger, victim, addresses)
            assert "may be dialled" in await dial_in_vain(victim, alias.peer)
        assert sum(ports.made.values()) == 0

    attacked(tmp_path, attack, announced)


def test_nobody_is_dialled_where_somebody_else_says_that_it_is(tmp_path: Path) -> None:
    """As an offer, a certificate or a plan names it: the core passes the list on."""

    async def attack(victim: Node, stranger: P2pd, alias: Alias, ports: ForeignPorts) -> None:
        nobody = Alias.fresh()
        for addresses in (ports.addresses, alias.signed(ports.addresses)):
            victim.transport.know(nobody.peer.id, addresses)
            assert "may be dialled" in await dial_in_vain(victim, nobody.peer)
            with pytest.raises(LinkBroken, match="may be dialled"):
                await victim.transport.open(nobody.peer.id, STEP_PROTOCOL)
        assert sum(ports.made.values()) == 0

    attacked(tmp_path, attack)


def test_who_signs_foreign_ports_as_its_own_reaches_few_and_on_no_other_host(tmp_path: Path) -> None:
    async def attack(victim: Node, stranger: P2pd, alias: Alias, ports: ForeignPorts) -> None:
        for _ in range(20):
            liar = Alias.fresh()
            victim.transport.know(liar.peer.id, liar.signed(ports.addresses))
            await dial_in_vain(victim, liar.peer)
        assert sum(ports.made[address] for address in ports.on(*OTHER_HOSTS)) == 0
        assert 0 < sum(ports.made[address] for address in ports.on(SAME_HOST)) <= 2 * PORTS * ENDPOINT.at_once

    attacked(tmp_path, attack)


def test_an_honest_peer_is_still_dialled_where_its_card_says(tmp_path: Path) -> None:
    async def attack(victim: Node, stranger: P2pd, alias: Alias, ports: ForeignPorts) -> None:
        own = alias.signed(await stranger.addresses())
        victim.transport.know(alias.peer.id, ports.addresses)
        victim.transport.know(alias.peer.id, own)
        victim.transport.know(alias.peer.id, Alias.fresh().signed(ports.addresses))
        assert STEP_PROTOCOL in await dial_in_vain(victim, alias.peer), "it was reached, and speaks something else"
        assert sum(ports.made.values()) == 0

    attacked(tmp_path, attack)


def test_a_knock_tells_nothing_of_others(tmp_path: Path) -> None:
    async def attack(victim: Node, stranger: P2pd, alias: Alias, ports: ForeignPorts) -> None:
        there = PeerAddress(victim.peer.id, await victim.p2pd.addresses())
        (own,) = await stranger.addresses()
        took = []
        shut = f"/ip4/{SAME_HOST}/tcp/1024"
        for named in (ports.on(*OTHER_HOSTS), ports.on(SAME_HOST), (shut,), (f"/ip4/{SAME_HOST}/tcp/22",), ("x",)):
            began = trio.current_time()
            assert await ask(stranger, there, named) == ""
            took.append(trio.current_time() - began)
        assert min(took) >= KNOCK_SECONDS, "test_dial_back.py has the other bound, where other work adds nothing"
        for _ in range(3):
            assert await ask(stranger, there, ports.on(SAME_HOST)) == ""
        assert sum(ports.made[address] for address in ports.on(*OTHER_HOSTS)) == 0
        assert sum(ports.made.values()) <= PORTS * ENDPOINT.at_once
        assert await ask(stranger, there, [*ports.on(SAME_HOST)[:1], own]) == own

    attacked(tmp_path, attack)


def test_p2pd_is_not_asked_when_the_gate_says_no(tmp_path: Path) -> None:
    """It would dial what identify has told it."""

    async def attack(victim: Node, stranger: P2pd, alias: Alias, ports: ForeignPorts) -> None:
        await greet(stranger, victim, ())
        for addresses in ((), ports.on(*OTHER_HOSTS), (f"/ip4/{SAME_HOST}/tcp/22",)):
            with pytest.raises(P2pdError, match="may be dialled"):
                await victim.p2pd.connect(alias.peer.id, addresses, 5)
        assert sum(ports.made.values()) == 0

    attacked(tmp_path, attack, announced=True)
