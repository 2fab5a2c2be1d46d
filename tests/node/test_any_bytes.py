"""Bytes of a hostile peer on each protocol of a node, drawn by hypothesis: a value or a PeerError, and nothing else.

They begin with what is valid and what fuzz_bytes.py has kept, and are changed in up to three places.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from ftnode.protocol.words.errors import PeerError
from tests.chances import CHANCES, at_once
from tests.node.fuzz_bytes import PROTOCOLS, TARGETS, TEXT_MAX, seeds
from tests.node.hostile_bytes import changed, planted


def hear(protocol: str, chance: Random) -> None:
    """AssertionError, or what a reader raises, where it gives neither a value nor a short PeerError."""
    for name in PROTOCOLS[protocol]:
        read, valid = TARGETS[name]
        data = chance.choice([*valid, *seeds().get(name, ())])
        for _ in range(chance.randrange(4)):
            data = changed(data, chance)
        try:
            read(data)
        except PeerError as error:
            assert len(str(error)) < TEXT_MAX, data[:200].hex()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_whatever_a_peer_sends_is_a_value_or_its_mistake(protocol: str) -> None:
    @given(CHANCES)
    def each(chance: Random) -> None:
        hear(protocol, chance)

    each()


@pytest.mark.parametrize("bug", ["raises", "says too much"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, valid = TARGETS["step"]
    monkeypatch.setitem(TARGETS, "step", (planted(read, bug), valid))
    with pytest.raises(KeyError if bug == "raises" else AssertionError):
        at_once(lambda chance: hear("/ftnode/step", chance))
