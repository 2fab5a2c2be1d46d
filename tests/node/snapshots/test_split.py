"""The same layers in another number of stages."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.models.config import ModelConfig
from ftnode.models.state_plan import StatePlan
from ftnode.node.snapshots.format import KeptSnapshot, SnapshotError
from ftnode.node.snapshots.split import sources_of, split, version_in
from ftnode.node.snapshots.store import SnapshotStore, tensors_of
from ftnode.node.snapshots.write import write_snapshot
from tests.node.snapshots.keeping import ALLOWANCE, MODEL, RUN, keep

OTHER = "cd" * 16
COMMIT = "a" * 24


def tensors(kept: KeptSnapshot) -> dict[str, bytes]:
    """By name, all parts together."""
    found, loaded = {}, SnapshotStore(kept.folder, kept.index.run).load(kept)
    for part, content in loaded.items():
        for name, (_, shape, begin) in tensors_of(kept, part).items():
            length = MODEL.number_bytes
            for each in shape:
                length *= each
            found[name] = bytes(content[begin : begin + length])
    return found


def divided(home: Path, kept: list[KeptSnapshot], stages: int, model: ModelConfig = MODEL) -> list[KeptSnapshot]:
    made, plan = [], StatePlan(model, stages, "adam")
    for stage in range(stages + 1):
        index, state = split(sources_of(kept, plan, stage), OTHER, plan, stage)
        made.append(write_snapshot(SnapshotStore(home, OTHER), memoryview(state), index, ALLOWANCE, ()))
    return made


@pytest.fixture
def kept(tmp_path: Path) -> list[KeptSnapshot]:
    """Head and two stages of two layers each, in any order."""
    made = [keep(tmp_path, 7, stage, commit=COMMIT) for stage in (0, 1, 2)]
    random.Random(1).shuffle(made)
    return made


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_tensor_is_where_its_name_says(tmp_path: Path, kept: list[KeptSnapshot], stages: int) -> None:
    before = {name: content for each in kept for name, content in tensors(each).items()}
    made = divided(tmp_path, kept, stages)
    assert {name: content for each in made for name, content in tensors(each).items()} == before
    assert {each.version for each in made} == {version_in(OTHER, kept[0].version)}
    assert sum(each.index.state.norm_squared for each in made[1:]) == pytest.approx(2 * 2.5)
    assert all(each.index.state.updates == 6 for each in made)
    assert len(SnapshotStore(tmp_path, OTHER).kept()) == stages + 1


def test_counts_of_several_sources_err_to_the_slow_side(tmp_path: Path, kept: list[KeptSnapshot]) -> None:
    first, second = (each for each in kept if each.stage)
    state = replace(second.index.state, updates=2, rate_factor=1.0)
    rebuilt = replace(second, index=replace(second.index, state=state))
    index, _ = split([first, rebuilt], OTHER, StatePlan(MODEL, 1, "adam"), 1)
    assert (index.state.updates, index.state.rate_factor) == (6, 1.0)


def test_what_is_missing_or_different_is_named(tmp_path: Path, kept: list[KeptSnapshot]) -> None:
    first = [each for each in kept if each.stage == 1]
    with pytest.raises(SnapshotError, match=r"stage 1 of 1 cannot be made: nothing here has model\.layers\.2\."):
        sources_of(first, StatePlan(MODEL, 1, "adam"), 1)
    assert [each.stage for each in sources_of(kept, StatePlan(MODEL, 4, "adam"), 4)] == [2]
    with pytest.raises(SnapshotError, match=r"gate_proj\.weight has shape \(48, 32\), not \(64, 32\)"):
        sources_of(kept, StatePlan(replace(MODEL, hidden=64), 4, "adam"), 1)
    with pytest.raises(SnapshotError, match=r"model\.norm_eps is 1e-05, not 1e-06"):
        sources_of(kept, StatePlan(replace(MODEL, norm_eps=1e-6), 4, "adam"), 1)
    other = keep(tmp_path, 7, 2, commit="b" * 24)
    with pytest.raises(SnapshotError, match="its layers are of different commits"):
        sources_of([*first, other], StatePlan(MODEL, 1, "adam"), 1)


def test_a_damaged_source_makes_nothing(tmp_path: Path, kept: list[KeptSnapshot]) -> None:
    path = kept[0].folder / "optimiser.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match="is damaged"):
        divided(tmp_path, kept, 1)
    assert RUN in str(path)
