"""Whether a node finds anybody to start from, and how soon it says that it does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.life.first_contact import believable, nobody_met, unanswered
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.reachability import Reachability
from ftnode.protocol.words.events import Directory, DirectoryLost
from tests.node.life.departing import passes, run
from tests.node.links.linked_node import limited
from tests.node.links.test_relay import peer, where
from tests.protocol.situations import VIEW

WRONG = "nobody is seen by a clock that is so far off"


@dataclass
class Looks:
    """What a node has found out about the addresses that it has."""

    only_others: trio.Event = field(default_factory=trio.Event)
    instead: tuple[str, str] = ("/there", "B")
    trouble: str = "A: connection refused"


@pytest.mark.parametrize(
    ("others_at", "met_at", "trouble", "seconds", "says"),
    [
        (None, None, WRONG, 60.0, "nobody is seen, since this clock is an hour off; look whether theirs are right"),
        (None, 5.0, "", 60.0, ""),
        (None, None, "", 60.0, "no peer answered within 60 s (A: connection refused); check the address"),
        (None, None, "the directory is away; check the address, that the peer runs, and firewalls in between", 60.0,
         "no peer answered within 60 s (the directory is away); check the address"),
        (0.5, None, "the directory is away", 0.5, "at /there another peer answers, B; copy the whole address"),
        (0.5, 0.2, "", 0.5, ""),
    ],
)  # fmt: skip
def test_it_waits_for_somebody_only_while_somebody_may_come(
    others_at: float | None, met_at: float | None, trouble: str, seconds: float, says: str
) -> None:
    async def main() -> None:
        looks: Any = Looks()
        async with trio.open_nursery() as nursery:
            if others_at is not None:
                nursery.start_soon(found, looks, others_at)
            failure = await nobody_met(
                60.0, looks, lambda: met_at is not None and trio.current_time() >= met_at, lambda: trouble,
                lambda: "this clock is an hour off" if trouble == WRONG else "",
            )  # fmt: skip
        assert trio.current_time() == seconds
        assert str(failure).startswith(says) if says else failure is None
        assert failure is None or failure.exit_code == 69

    async def found(looks: Looks, at: float) -> None:
        await passes(at)
        looks.only_others.set()

    run(main)


def test_an_empty_directory_proves_nothing_to_a_clock_that_is_far_off() -> None:
    """Else the run would be founded a second time beside the one that goes on."""
    empty, somebody = Directory((), ()), Directory((), (VIEW,))
    assert believable(empty, "an hour off") == DirectoryLost(WRONG)
    for event, clock in ((empty, ""), (somebody, "an hour off"), (DirectoryLost("away"), "an hour off")):
        assert believable(event, clock) is event


def test_another_peer_at_each_address_is_known_at_the_first_look(tmp_path: Path) -> None:
    """As with a PeerId that somebody mistyped. Who is there, or is only away, is waited for."""

    async def main() -> None:
        a, b, c, d = (take_identity(tmp_path, f"wanted{number}").peer_id for number in range(4))
        async with peer(tmp_path) as own, peer(tmp_path) as there:
            listens, nowhere = await where(there), "/ip4/127.0.0.1/tcp/1"
            cases = {
                (PeerAddress(a, listens.addresses),): True,
                (PeerAddress(b, listens.addresses), listens): False,
                (PeerAddress(c, (nowhere,)),): False,
                (PeerAddress(d, (*listens.addresses, nowhere)),): False,
            }
            for given, found in cases.items():
                own.gate.give(given)
                looks = Reachability(own, given, lambda reach: None)
                await looks.look()
                assert looks.only_others.is_set() == found, given
                assert not found or looks.instead == (str(given[0]), there.peer_id)

    limited(main)


def test_a_named_peer_that_does_not_answer_is_told_of_when_others_do() -> None:
    """Who types a new meeting point may else train alone, by one that is remembered."""
    named, why = [PeerAddress("A", ()), PeerAddress("B", ())], {"A": "connection\n refused", "C": "no route"}
    assert unanswered(named, {"C"}, why) == {
        "A": "A does not answer (connection refused); goes on with others that are known"
    }
    assert unanswered(named, set(), why) == {}, "nobody does, which ends the node"
