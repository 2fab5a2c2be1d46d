"""Snapshots of a run with Muon: kept, loaded, divided, and told apart from Adam's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.models.state_plan import StatePlan
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.snapshots.format import INDEX_NAME, SnapshotError, UnknownFormat, _checksum, parse_index
from ftnode.node.snapshots.split import sources_of, split
from ftnode.node.snapshots.store import SnapshotStore, check_fits, read_snapshot, tensors_of
from ftnode.node.snapshots.write import write_snapshot
from tests.node.compute.computing import ATTEMPT, CONFIG, STAGES, Refused, direct, train
from tests.node.snapshots.keeping import ALLOWANCE, MODEL, RUN, keep
from tests.node.snapshots.keeping import STAGES as KEPT_STAGES
from tests.node.snapshots.saving import Node, settled

MUON = replace(CONFIG, optimiser="muon")
OTHER = "cd" * 16


def trained(home: Path, config: ComputeConfig) -> Node:
    """Kept at step 2."""
    node = Node(home, config)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            node.train(2)
            await settled(node, STAGES + 1)
            nursery.cancel_scope.cancel()

    trio.run(main)
    return node


def load(node: Node, config: ComputeConfig) -> list[str]:
    """Into a new process; then one step."""
    again = direct(config, range(0))
    for kept in node.store.kept():
        again.call("snapshot_load", stage=kept.stage, folder=str(kept.folder), step=2, commit="c2", attempt=ATTEMPT)
    return train(again, 3)["digests"]  # type: ignore[no-any-return]


def test_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    node = trained(tmp_path, MUON)
    assert load(node, MUON) == node.train(3)["digests"]
    (kept,) = [each for each in node.store.kept() if each.stage == 2]
    assert kept.index.optimiser == "muon"
    named = tensors_of(kept, "optimiser")
    assert "model.layers.1.mlp.up_proj.weight.momentum_buffer" in named
    assert "model.layers.1.input_layernorm.weight.exp_avg_sq" in named
    assert "model.layers.1.mlp.up_proj.weight.exp_avg_sq" not in named


@pytest.mark.parametrize(("has", "wants"), [(CONFIG, MUON), (MUON, CONFIG)], ids=["adam", "muon"])
def test_the_moments_of_another_optimiser_are_refused(tmp_path: Path, has: ComputeConfig, wants: ComputeConfig) -> None:
    says = f"has the moments of {has.optimiser}, and the run trains with {wants.optimiser}"
    with pytest.raises(Refused, match=says) as caught:
        load(trained(tmp_path, has), wants)
    assert str(caught.value).count("\n") == 0


def test_weights_alone_fit_any_optimiser(tmp_path: Path) -> None:
    kept = keep(tmp_path, 1)
    check_fits(kept, StatePlan(MODEL, KEPT_STAGES, "muon"), ["weights"])
    with pytest.raises(SnapshotError, match="has the moments of adam"):
        check_fits(kept, StatePlan(MODEL, KEPT_STAGES, "muon"))


@pytest.mark.parametrize("stages", [1, 4])
def test_a_stage_is_divided_with_its_momentum(tmp_path: Path, stages: int) -> None:
    kept = [keep(tmp_path, 7, stage, commit="a" * 24, optimiser="muon") for stage in (0, 1, 2)]
    plan = StatePlan(MODEL, stages, "muon")
    for stage in range(stages + 1):
        sources = sources_of(kept, plan, stage)
        index, state = split(sources, OTHER, plan, stage)
        made = write_snapshot(SnapshotStore(tmp_path, OTHER), memoryview(state), index, ALLOWANCE, ())
        assert made.index.optimiser == "muon"
        for part in ("weights", "optimiser"):
            for name, (_, _, begin) in tensors_of(made, part).items():
                (source,) = [each for each in sources if name in tensors_of(each, part)]
                there = tensors_of(source, part)[name][2]
                ours, theirs = (SnapshotStore(tmp_path, OTHER).load(each, [part])[part] for each in (made, source))
                assert ours[begin : begin + 64] == theirs[there : there + 64], name
    with pytest.raises(SnapshotError, match="has the moments of muon, and the run trains with adam"):
        sources_of(kept, StatePlan(MODEL, stages, "adam"), 1)


def test_an_index_of_before_is_adams_and_an_unknown_kind_is_left_alone(tmp_path: Path) -> None:
    path = keep(tmp_path, 1).folder / INDEX_NAME
    plain = json.loads(path.read_text())
    del plain["checksum"]
    for kind, found in ((None, "adam"), ("muon", ""), ("later", "")):
        told = {key: value for key, value in plain.items() if key != "optimiser"}
        told |= {} if kind is None else {"optimiser": kind}
        text = json.dumps(told | {"checksum": _checksum(told)}).encode()
        if found:
            assert parse_index(text, path).optimiser == found
        elif kind == "muon":
            with pytest.raises(SnapshotError, match=r"optimiser of .* bytes does not fit the model"):
                parse_index(text, path)
        else:
            with pytest.raises(UnknownFormat, match="an optimiser that this ftnode does not know: later"):
                parse_index(text, path)
            path.write_bytes(text)
            assert SnapshotStore(tmp_path, RUN).prune(9) == [] and path.exists(), "not ours to clear away"
    with pytest.raises(UnknownFormat):
        read_snapshot(path.parent)
