"""A peer says where it is, in its presence, and again when it has moved."""

from __future__ import annotations

from random import Random

import pytest

from ftnode.protocol.participant import Participant
from ftnode.protocol.words.effects import Announce
from ftnode.protocol.words.events import ComputeReady, Moved
from ftnode.protocol.words.types import Peer
from tests.protocol.situations import SETTINGS

AT_HOME, ABROAD = "/ip4/93.184.216.34/tcp/31337", "/ip4/8.8.8.8/tcp/31337"


@pytest.mark.parametrize(
    ("given", "sites"), [("", ["93.184.0.0/16", "8.8.0.0/16"]), ("attic", ["attic", "attic"])], ids=["implied", "given"]
)
def test_it_says_where_it_is_and_again_when_it_has_moved(given: str, sites: list[str]) -> None:
    core = Participant(Peer("a", 1), SETTINGS, Random(1), addresses=(AT_HOME,), site=given)
    effects = [*core.handle(ComputeReady(1, True, 1.0), 0.0), *core.handle(Moved((ABROAD,)), 1.0)]
    assert [each.presence.site for each in effects if isinstance(each, Announce)] == sites
    assert core.picture.here == core.picture.sites()[core.me] == sites[-1]
