"""Hostile bytes for the reader of every protocol, mangled further where they got somewhere new (fuzz_bytes.py)."""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest

from tests.node import fuzz_bytes
from tests.node.fuzz_bytes import PROTOCOLS, SEEDS, TARGETS, fuzz, seeds
from tests.node.hostile_bytes import planted
from tests.syntax_trees import ROOT, trees_of

SECONDS: Final = 0.5
"""Of processor time for each reader: a quarter of a minute for all. `make night` has ten minutes."""
ROUNDS: Final = 20
"""In which a planted bug is found, whatever else the processor has to do."""
ALWAYS_SAYS: Final = ("watcher", "stored record")
"""These refuse without raising."""


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_gives_a_value_or_a_peer_error(name: str) -> None:
    found = fuzz(name, SECONDS, 1, seeds().get(name, ()))
    assert not found.failures, [(why, data[:200].hex()) for why, data in found.failures[:3]]
    assert found.samples > 100 and (found.places or name in ALWAYS_SAYS)


def test_seeds_are_kept_of_what_a_reader_refuses_in_places_that_bombs_do_not_reach() -> None:
    kept = seeds()
    assert kept.keys() >= {"step", "greeting", "state", "reduction", "status", "record"}
    assert kept.keys() <= TARGETS.keys() and sum(map(len, kept.values())) > 100 and SEEDS.stat().st_size < 1 << 20


def test_what_is_kept_gets_further_than_what_is_new() -> None:
    """Without any looking."""
    name = "step"
    kept = fuzz(name, 0.0, 1, seeds()[name])
    assert len(kept.places) > len(fuzz(name, 0.0, 1).places) and not kept.failures


def test_every_protocol_of_a_node_has_a_reader_here() -> None:
    names = set()
    for package in ("node", "protocol"):
        for tree in trees_of(package).values():
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names |= set(re.findall(r"^(/(?:ftnode/[a-z]+|libp2p/circuit/relay))/[\d.]+(?:/\w+)?$", node.value))
    assert names == PROTOCOLS.keys() - {"the directory"} and (ROOT / "node").is_dir()
    assert {reader for readers in PROTOCOLS.values() for reader in readers} == TARGETS.keys()


@pytest.mark.parametrize("bug", ["raises", "says too much", "is slow"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a message that is nearly right."""
    read, valid = TARGETS["step"]

    clock: list[float] = []
    usual = fuzz_bytes.time.process_time
    monkeypatch.setattr(fuzz_bytes.time, "process_time", lambda: usual() + sum(clock))
    monkeypatch.setitem(TARGETS, "step", (planted(read, bug, lambda: clock.append(2.0)), valid))
    assert any(fuzz("step", SECONDS, seed).failures for seed in range(1, ROUNDS)), f"in {ROUNDS} s"
