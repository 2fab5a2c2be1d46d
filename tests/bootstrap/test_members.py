"""Of which runs a meeting point tells: many identities of one stranger hide none."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import pytest

from ftnode.bootstrap import server
from ftnode.bootstrap.server import MEMBERS_MAX, members_of
from ftnode.node.directory.records import RunNotice, Statement
from ftnode.protocol.words.types import Peer

HOME = "203.0.0.0/16"
ELSEWHERE = "198.51.0.0/16"


def notice(name: str, run: str, sequence: int) -> Statement:
    addresses = (f"/ip4/203.{sequence % 200}.7.7/tcp/1",)  # as anybody can say
    return Statement(run, Peer(name, 1), sequence, sequence + 1, RunNotice(run, addresses))


HONEST = [notice("honest", "honest run", 1)]


def liars(count: int, runs: int) -> list[Statement]:
    """Newer than everything else."""
    return [notice(f"liar-{number}", f"run {number % runs}", 1000 + number) for number in range(count)]


def told(notices: Iterable[Statement], seen: dict[str, str], shown: Iterable[str] = ()) -> set[str]:
    members = members_of(notices, seen, [*shown])
    assert len(members) <= MEMBERS_MAX
    return {member.run for member in members}


def by_age(notices: Iterable[Statement], kind: Callable[[Statement], Hashable]) -> list[Statement]:
    return sorted(notices, key=lambda one: -one.sequence)


@pytest.mark.parametrize("bug", [False, True])
@pytest.mark.parametrize("runs", [1, 500])
def test_a_crowd_at_one_network_hides_no_run(bug: bool, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the newest come first, wherever they are."""
    if bug:
        monkeypatch.setattr(server, "_in_turns", by_age)
    crowd = liars(500, runs)
    seen = {"honest": HOME} | {one.peer.id: ELSEWHERE for one in crowd}
    assert ("honest run" in told(HONEST + crowd, seen)) is not bug


def test_addresses_that_nobody_has_seen_make_no_networks() -> None:
    assert "honest run" in told(HONEST + liars(500, 500), {"honest": HOME})
    assert "honest run" in told(HONEST + liars(500, 1), {})


def test_who_was_told_of_goes_on_to_be() -> None:
    """Also where nobody is connected any more, and each liar names a run of its own."""
    assert "honest run" not in told(HONEST + liars(500, 500), {})
    assert "honest run" in told(HONEST + liars(500, 500), {}, ["honest"])
