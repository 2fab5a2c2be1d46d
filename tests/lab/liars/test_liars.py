"""`ftnode lab liars`: what is chosen, printed, written, and kept. The swarms and worlds are fakes here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ftnode.lab.commands.liars import liars as command
from ftnode.lab.hostile.lies import told
from ftnode.lab.hostile.traitor import WAYS
from ftnode.lab.liars import cost, liars, swarm
from ftnode.lab.liars.figures import ROW
from ftnode.lab.liars.kinds import KINDS, Kind
from ftnode.lab.liars.swarm import Ground
from ftnode.protocol.words.errors import UserError
from tests.sim import liars as virtual

LOSSES = {str(step): 2.0 for step in range(1, 401)}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured, in this order."""
    done: list[str] = []

    def measure(kind: Kind, ground: Ground) -> dict[str, Any]:
        if kind.name == "gradients-noise" and "stopped" not in done:
            done.append("stopped")
            raise KeyboardInterrupt
        done.append(f"{kind.name} {ground.boundary}")
        return {
            "kind": kind.name, "last": 300, "found_after": 5, "removed": 0, "stopped": False, "before": 10.0,
            "during": 9.0, "losses": LOSSES, "silenced": ["v1"] if kind.name == "wrong-donor" else [],
        }  # fmt: skip

    def worlds(kind: str, seeds: range) -> list[dict[str, Any]]:
        done.append(f"{kind} in {len(seeds)} worlds")
        return [{"steps": None, "removed": 0, "harmless": False}] * len(seeds)

    monkeypatch.setattr(swarm, "measure", measure)
    monkeypatch.setattr(swarm, "baseline", lambda ground, steps: {"losses": LOSSES})
    monkeypatch.setattr(virtual, "seen_in", worlds)
    costs = {"tokens": 0.02, "bytes": 0.01, "longer": 0.2, "checked": 9}
    monkeypatch.setattr(cost, "measure", lambda ground, steps: costs | {"steps": steps})
    monkeypatch.setattr(liars, "use_template", lambda: None)
    return done


def asked(*words: str) -> str:
    return CliRunner().invoke(command, [*words], standalone_mode=False, catch_exceptions=False).output


def test_it_writes_what_it_prints(tmp_path: Path, made: list[str]) -> None:
    out = tmp_path / "out"
    words = ("--only", "gradients-turned", "--only", "fifty-identities", "--only", "cost", "--worlds", "3")
    found = json.loads(asked(*words, "--json", "--out", str(out)))
    assert json.loads((out / "liars.json").read_text()) == found
    assert [tuple(each) for each in found["kinds"]] == [ROW, ROW]
    assert [each["outcome"] for each in found["kinds"]] == ["found", "not defended"]
    assert (found["f1"], found["cost"], found["checks"]["bytes"]) == (0.667, 0.02, 0.01)
    assert list(found["virtual"]) == ["gradients-turned", "fifty-identities"]
    assert made == ["gradients in 3 worlds", "gradients-turned float32", "fifty in 3 worlds"]


def test_it_goes_on_where_it_was_stopped_and_worlds_of_one_kind_serve_all(tmp_path: Path, made: list[str]) -> None:
    words = ("--only", "gradients-turned", "--only", "gradients-noise", "--out", str(tmp_path))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        liars.run(liars.Asked(("gradients-turned", "gradients-noise"), tmp_path))
    printed = asked(*words)
    assert made == ["gradients in 20 worlds", "gradients-turned float32", "stopped", "gradients-noise float32"]
    assert "F1 by encoding of boundary tensors: 1 (float32)" in printed
    assert len(json.loads((tmp_path / "liars.json").read_text())["kinds"]) == 2


def test_virtual_worlds_alone_go_on_where_they_stopped_and_leave_swarms_as_they_were(
    tmp_path: Path, made: list[str]
) -> None:
    asked("--only", "two-that-agree", "--worlds", "20", "--out", str(tmp_path))
    before, made[:] = json.loads((tmp_path / "liars.json").read_text()), []
    words = ("--virtual", "--only", "two-that-agree", "--only", "fifty-identities", "--worlds", "50")
    printed = asked(*words, "--out", str(tmp_path))
    assert made == [f"friends in {n} worlds" for n in (20, 10)] + [f"majority in {n} worlds" for n in (20, 10)] + [
        f"fifty in {n} worlds" for n in (20, 20, 10)
    ]  # fmt: skip
    found = json.loads((tmp_path / "liars.json").read_text())
    assert found["kinds"][:1] == before["kinds"] and found["kinds"][1]["kind"] == "fifty-identities"
    rows = ["two-that-agree", "two-that-agree, of three", "fifty-identities"]
    assert [*found["virtual"]] == rows and {each["worlds"] for each in found["virtual"].values()} == {50}
    assert [line.split("  ")[0].strip() for line in printed.splitlines()] == rows


def test_a_kind_that_the_virtual_world_does_not_have(made: list[str]) -> None:
    with pytest.raises(UserError, match="the virtual world has no activations-zero; it has gradients-times1000, "):
        asked("--virtual", "--only", "activations-zero")


def test_other_encodings_stand_apart(tmp_path: Path, made: list[str]) -> None:
    asked("--only", "gradients-turned", "--out", str(tmp_path))
    asked("--only", "gradients-turned", "--boundary", "int8", "--out", str(tmp_path))
    found = json.loads((tmp_path / "liars.json").read_text())
    assert [each["kind"] for each in found["kinds"]] == ["gradients-turned"]
    assert {boundary: [tuple(each) for each in rows] for boundary, rows in found["by_boundary"].items()} == {
        "int8": [ROW]
    }
    assert found["f1_by_boundary"] == {"float32": 1.0, "int8": 1.0}
    asked("--only", "gradients-older", "--out", str(tmp_path))
    asked("--only", "gradients-older", "--only", "gradients-turned", "--boundary", "int4", "--out", str(tmp_path))
    again = json.loads((tmp_path / "liars.json").read_text())
    both = ["gradients-turned", "gradients-older"]
    assert [each["kind"] for each in again["kinds"]] == both
    apart = {boundary: [each["kind"] for each in rows] for boundary, rows in again["by_boundary"].items()}
    assert [*apart.items()] == [("int4", both), ("int8", both[:1])]


def test_where_only_another_encoding_was_measured_it_says_the_score(made: list[str]) -> None:
    words = ("--only", "gradients-turned", "--boundary", "int8")
    assert "F1 by encoding of boundary tensors: 1 (int8)" in asked(*words)
    assert json.loads(asked(*words, "--json"))["kinds"] == []


def test_what_a_busy_machine_made_of_a_swarm_is_not_kept(tmp_path: Path, made: list[str]) -> None:
    with pytest.raises(UserError, match="v1 went for silence, since the machine is too busy"):
        liars.run(liars.Asked(("wrong-donor",), tmp_path))
    assert not [*tmp_path.glob("kept/wrong-donor*")] and not (tmp_path / "liars.json").exists()


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(UserError, match="no kind of lie is called fire"):
        liars.chosen_kinds(["fire"])
    assert liars.chosen_kinds([]) == (KINDS, ("cost", "hardware"))
    assert liars.chosen_kinds(["cost"]) == ((), ("cost",)) and liars.chosen_kinds(["gradients-turned"])[1] == ()


def test_every_kind_has_a_name_of_its_own_and_a_lie_that_there_is() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.real or kind.virtual
        assert not kind.told or told(f"{kind.told},order=/nowhere")
        assert kind.way in ("", *WAYS) and not (kind.told and kind.way)
        assert {kind.virtual, kind.outvoting} <= {"", *virtual.KINDS}


def test_groups_are_full_and_three_hold_each_stage() -> None:
    manifest = Ground(boundary="int8").manifest()
    assert Ground().volunteers == 6 and manifest.pipeline.replicas == 3 and manifest.pipeline.stages == 1
    assert manifest.trust.checks == 0.02 and manifest.boundary_encodings == ("int8", "int8")
    assert manifest.batch.microbatches == 8


def test_where_the_stage_beside_is_lost_it_is_compared_with_the_same_without_a_lie(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has half of the rate before; with the lie it is nine tenths. Both have their own swarm."""
    grounds: list[tuple[str, Ground]] = []

    def measure(kind: Kind, ground: Ground) -> dict[str, Any]:
        grounds.append((kind.told, ground))
        return {
            "kind": kind.name, "last": 300, "found_after": None, "removed": 0, "stopped": False, "before": 10.0,
            "during": 9.0 if kind.told else 5.0, "losses": dict.fromkeys(LOSSES, 2.02 if kind.told else 2.0),
            "silenced": [],
        }  # fmt: skip

    monkeypatch.setattr(swarm, "measure", measure)
    (found,) = json.loads(asked("--only", "wrong-neighbour", "--json"))["kinds"]
    assert [(bool(told), ground) for told, ground in grounds] == [(False, swarm.BESIDE), (True, swarm.BESIDE)]
    assert (found["loss_ratio"], found["tokens_ratio"], found["outcome"]) == (1.01, 1.8, "prevented")
