"""`ftnode lab liars`: what is chosen, printed, written, and kept. The swarms and worlds are fakes here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from click.testing import CliRunner

from ftnode.lab.commands.liars import liars as command
from ftnode.lab.hostile.lies import told
from ftnode.lab.hostile.traitor import WAYS
from ftnode.lab.liars import cost, liars, swarm
from ftnode.lab.liars.figures import ROW
from ftnode.lab.liars.ground import (
    AS_HEAD,
    GROUPS,
    IN_A_ROW,
    ONE_EACH,
    TWO_KEEPERS,
    WITH_ROOM,
    WITH_STANDBY,
    WITHOUT_SHADOW,
    Ground,
    Layout,
    Setting,
)
from ftnode.lab.liars.kinds import HONEST, KINDS, Kind
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
        done.append(f"{kind.name} {ground.setting.name}")
        return {
            "kind": kind.name, "last": 300, "lied_from": 200, "accused": 1, "found_after": 5, "removed": 0,
            "stopped": False, "before": 10.0, "during": 9.0, "losses": LOSSES,
            "silenced": ["v1"] if kind.name == "wrong-donor" else [],
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
    assert made == ["gradients in 3 worlds", "gradients-turned usual", "fifty in 3 worlds"]


def test_it_goes_on_where_it_was_stopped_and_worlds_of_one_kind_serve_all(tmp_path: Path, made: list[str]) -> None:
    words = ("--only", "gradients-turned", "--only", "gradients-noise", "--out", str(tmp_path))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        liars.run(liars.Asked(("gradients-turned", "gradients-noise"), tmp_path))
    printed = asked(*words)
    assert made == ["gradients in 20 worlds", "gradients-turned usual", "stopped", "gradients-noise usual"]
    assert "F1: 1 (usual)" in printed
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


def test_other_settings_stand_apart(tmp_path: Path, made: list[str]) -> None:
    asked("--only", "gradients-turned", "--out", str(tmp_path))
    asked("--only", "gradients-turned", "--sums", "int8", "--out", str(tmp_path))
    found = json.loads((tmp_path / "liars.json").read_text())
    assert [each["kind"] for each in found["kinds"]] == ["gradients-turned"]
    assert {name: [tuple(each) for each in rows] for name, rows in found["by_setting"].items()} == {"sums int8": [ROW]}
    assert found["f1_by_setting"] == {"usual": 1.0, "sums int8": 1.0}
    asked("--only", "gradients-older", "--out", str(tmp_path))
    words = ("--boundary", "int4", "--checks", "0", "--out", str(tmp_path))
    asked("--only", "gradients-older", "--only", "gradients-turned", *words)
    again = json.loads((tmp_path / "liars.json").read_text())
    both = ["gradients-turned", "gradients-older"]
    assert [each["kind"] for each in again["kinds"]] == both
    apart = {name: [each["kind"] for each in rows] for name, rows in again["by_setting"].items()}
    assert [*apart.items()] == [("boundary int4, checks 0", both), ("sums int8", both[:1])]
    assert made[-2:] == ["gradients-turned boundary int4, checks 0", "gradients-older boundary int4, checks 0"]


def test_where_only_another_setting_was_measured_it_says_the_score(made: list[str]) -> None:
    words = ("--only", "gradients-turned", "--boundary", "int8")
    assert "F1: 1 (boundary int8)" in asked(*words)
    assert json.loads(asked(*words, "--json"))["kinds"] == []


def test_a_swarm_in_which_nobody_lies_has_a_row_of_its_own(tmp_path: Path, made: list[str]) -> None:
    """Who would lie goes in this fake, and is honest here."""
    printed = asked("--only", "honest", "--sums", "int8", "--out", str(tmp_path))
    assert "nobody lies (sums int8): steps 100, accused 1, removed 1, loss ratio 1.0" in printed
    asked("--only", "honest", "--out", str(tmp_path))
    found = json.loads((tmp_path / "liars.json").read_text())
    assert [*found["honest"]] == ["sums int8", "usual"] and found["kinds"] == [] and found["by_setting"] == {}
    assert made == ["honest sums int8", "honest usual"] and not HONEST.real


@pytest.mark.parametrize("words", [("--checks", "1.1"), ("--checks", "nan"), ("--sums", "float32")])
def test_a_setting_that_there_is_not(words: tuple[str, str]) -> None:
    with pytest.raises(ClickException):
        asked(*words)


def test_a_run_without_a_lie_is_as_long_as_it_has_to_be(monkeypatch: pytest.MonkeyPatch, made: list[str]) -> None:
    """It is the same for all that a single volunteer does not do."""
    runs: list[tuple[Ground, int]] = []

    def baseline(alone: Ground, steps: int) -> dict[str, Any]:
        runs.append((alone, steps))
        return {"losses": LOSSES}

    monkeypatch.setattr(swarm, "baseline", baseline)
    monkeypatch.setattr(liars, "BASELINE_STEPS", 200)
    words = ("--only", "only-holder-gradients-turned", "--sums", "int8", "--checks", "0", "--boundary", "int4")
    asked(*words)
    assert runs == [(Ground(Layout(blocks=2, holders=1, hold=3), Setting(boundary="int4")), 400)]


def test_what_a_busy_machine_made_of_a_swarm_is_not_kept(tmp_path: Path, made: list[str]) -> None:
    with pytest.raises(UserError, match="v1 went for silence, since the machine is too busy"):
        liars.run(liars.Asked(("wrong-donor",), tmp_path))
    assert not [*tmp_path.glob("kept/wrong-donor*")] and not (tmp_path / "liars.json").exists()


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(UserError, match="no kind of lie is called fire"):
        liars.chosen_kinds(["fire"])
    assert liars.chosen_kinds([]) == (KINDS, ("honest", "cost", "hardware"))
    assert liars.chosen_kinds(["cost"]) == ((), ("cost",)) and liars.chosen_kinds(["gradients-turned"])[1] == ()


def test_every_kind_has_a_name_of_its_own_and_a_lie_that_there_is() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.real or kind.virtual
        assert not kind.told or told(f"{kind.told},order=/nowhere")
        assert kind.way in ("", *WAYS) and not (kind.told and kind.way)
        assert {kind.virtual, kind.outvoting} <= {"", *virtual.KINDS}


def test_groups_are_full_and_three_hold_each_stage() -> None:
    manifest = Ground(setting=Setting(boundary="int8", sums="int4")).manifest()
    assert GROUPS.volunteers == 6 and manifest.pipeline.replicas == 3 and manifest.pipeline.stages == 1
    assert manifest.trust.checks == 0.02 and manifest.boundary_encodings == ("int8", "int8")
    assert manifest.batch.microbatches == 8 and manifest.pipeline.sums == "int4"


def test_a_stage_s_only_holder_is_one_of_three_and_where_there_is_room_each_holds_two() -> None:
    only = [kind for kind in KINDS if kind.name.startswith("only-holder-")]
    assert {kind.layout for kind in only} == {ONE_EACH, AS_HEAD, WITH_STANDBY, WITH_ROOM, WITHOUT_SHADOW}
    assert {kind.layout for kind in KINDS if kind not in only} == {GROUPS, IN_A_ROW, TWO_KEEPERS}
    assert (ONE_EACH.volunteers, WITH_ROOM.volunteers) == (3, 3)
    assert (ONE_EACH.holders, WITH_ROOM.holders, WITH_ROOM.hold) == (1, 2, 2)
    assert not Ground(ONE_EACH, Setting(checks=0)).manifest().trust.checks
    assert Ground(ONE_EACH).manifest().recovery.shadow_every == 10
    assert not Ground(WITHOUT_SHADOW).manifest().recovery.shadow_every
    assert replace(ONE_EACH, shadow_every=0) == WITHOUT_SHADOW and replace(ONE_EACH, leads=True) == AS_HEAD


def test_settings_are_called_by_what_is_not_usual() -> None:
    assert Setting().name == "usual" and Setting("int8", "int4", 0.5).name == "boundary int8, sums int4, checks 0.5"


@pytest.mark.parametrize(("kind", "layout"), [("wrong-neighbour", IN_A_ROW), ("wrong-copies", TWO_KEEPERS)])
def test_where_a_stage_is_lost_it_is_compared_with_the_same_without_a_lie(
    made: list[str], monkeypatch: pytest.MonkeyPatch, kind: str, layout: Layout
) -> None:
    """Which has half of the rate before; with the lie it is nine tenths. Both have their own swarm."""
    grounds: list[tuple[str, Ground]] = []

    def measure(each: Kind, ground: Ground) -> dict[str, Any]:
        grounds.append((each.told, ground))
        return {
            "kind": each.name, "last": 300, "found_after": None, "removed": 0, "stopped": False, "before": 10.0,
            "during": 9.0 if each.told else 5.0, "losses": dict.fromkeys(LOSSES, 2.02 if each.told else 2.0),
            "silenced": [],
        }  # fmt: skip

    monkeypatch.setattr(swarm, "measure", measure)
    (found,) = json.loads(asked("--only", kind, "--json"))["kinds"]
    ground = Ground(layout)
    assert [(bool(told), each) for told, each in grounds] == [(True, ground), (False, ground)]
    assert (found["loss_ratio"], found["tokens_ratio"], found["outcome"]) == (1.01, 1.8, "prevented")
