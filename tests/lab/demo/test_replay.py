"""A recorded life gives the same decisions again, and a trace that was altered does not."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ftnode.lab.demo import replay as replay_module
from ftnode.lab.demo.replay import Decision, Turn, replay
from ftnode.node.driver.trace import TraceWriter, read_trace
from ftnode.protocol.participant import Participant
from ftnode.protocol.words.effects import Apply, Committed, Compute, Effect, Forward, Install, Note, Release
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.events import ComputeReady, Directory, Done, Event, Installed, Wake
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from tests.sim.world import World

SETTINGS = Settings(run="r" * 32, stages=2, steps=2, microbatches=2, window=2)
ADDRESS = "/ip4/127.0.0.1/tcp/1"
ME = Peer("12D3KooWalone", 5)


def record_life(path: Path) -> Path:
    """One volunteer that holds everything trains two steps; its compute answers at once."""
    header: dict[str, Any] = {"peer": list(ME), "run": SETTINGS.run, "settings": asdict(SETTINGS), "chance": 3,
                              "addresses": [ADDRESS], "hold": 3, "site": "", "wall": 0.0, "version": "test",
                              "precision": "float32"}  # fmt: skip
    trace = TraceWriter(path, header)
    participant = Participant(ME, SETTINGS, Random(3), addresses=(ADDRESS,), hold=3)
    now, handle = 10.0, 0
    pending: list[Event] = [ComputeReady(3, True, 100.0), Directory((), ())]
    for _ in range(400):
        now += 0.1
        event = pending.pop(0) if pending else Wake()
        trace.event(now, event)
        for effect in participant.handle(event, now):
            match effect:
                case Note():
                    trace.note(now, effect)
                case Committed(lineage=lineage, version=version, skipped=skipped, commit=commit):
                    trace.record(
                        "commit", now, lineage=lineage, step=version.step, commit=version.commit,
                        attempt=version.attempt, skipped=skipped, loss=commit.loss, tokens=commit.tokens,
                        seconds=commit.seconds, norms=commit.norms,
                    )  # fmt: skip
                case Apply(stage=stage, version=version, attempt=attempt, skipped=skipped):
                    trace.record("applied", now, stage=stage, step=version.step, commit=version.commit,
                                 attempt=attempt, skipped=skipped)  # fmt: skip
                case Compute(task=task):
                    handle += 1
                    output = handle if isinstance(task, Forward) or getattr(task, "visit", 0) else None
                    pending.append(Done(task, output, 1.5, 8, "hash", ""))
                case Install(plan=plan, base=base):
                    pending.append(Installed(plan.stage, base, 0, 0.0, 0.0, "digest"))
                case Release():
                    pass
    trace.close(now, "stopped")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return record_life(tmp_path / "trace.jsonl")


def test_the_same_events_give_the_same_decisions(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = list(replay(read_trace(trace)))
    assert all(turn.same for turn in turns)
    kinds = {decision.kind for turn in turns for decision in turn.now}
    assert {"found", "view", "commit", "apply", "finished"} <= kinds
    assert replay_module.main(trace, as_json=False) == 0
    printed = capsys.readouterr()
    assert "starts the run" in printed.out
    assert "0 with other decisions" in printed.err


def rewrite(trace: Path, records: list[dict[str, Any]]) -> None:
    trace.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_another_decision_than_recorded_is_told(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = read_trace(trace)
    next(record for record in records if record["k"] == "commit")["commit"] = "f" * 24
    rewrite(trace, records)
    assert replay_module.main(trace, as_json=True) == 1
    differing = [turn for turn in map(json.loads, capsys.readouterr().out.splitlines()) if not turn["same"]]
    assert len(differing) == 1
    assert any("f" * 24 in decision["text"] for decision in differing[0]["then"])


@pytest.mark.parametrize(
    ("turns", "told"), [(3, 0), (-3, 2), (None, 1)], ids=["when the weights are here", "before it was decided", "never"]
)
def test_a_commit_that_waited_for_its_weights_is_no_other_decision(trace: Path, turns: int | None, told: int) -> None:
    """The core decides it once; the trace tells of it when the stage was there to apply it to."""
    records = read_trace(trace)
    (applied,) = (
        i for i, each in enumerate(records) if each["k"] == "applied" and (each["stage"], each["step"]) == (1, 2)
    )
    record = records.pop(applied)
    if turns is not None:
        events = [i for i, each in enumerate(records) if each["k"] == "event"]
        own = max(number for number, i in enumerate(events) if i < applied)
        records.insert(events[own + turns] + 1, record)
    rewrite(trace, records)
    assert sum(not turn.same for turn in replay(read_trace(trace))) == told


def test_an_event_that_is_missing_changes_what_follows(trace: Path) -> None:
    records = read_trace(trace)
    index = next(i for i, record in enumerate(records) if record["k"] == "event" and record["e"][0] == "Done")
    del records[index]
    rewrite(trace, records)
    assert not all(turn.same for turn in replay(read_trace(trace)))


def test_a_replay_ends_where_strangers_are_left_out(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = read_trace(trace)
    index = [i for i, record in enumerate(records) if record["k"] == "event"][20]
    without = [record for record in records[index + 1 :] if record["k"] != "event" or record["e"][0] != "Received"]
    rewrite(trace, [*records[:index], {"n": 0, "t": 0.0, "k": "left_out", "reason": "strangers"}, *without])
    turns = list(replay(read_trace(trace)))
    assert len(turns) == 20 and all(turn.same for turn in turns)
    assert replay_module.main(trace, as_json=False) == 0
    assert "the replay ends at line 0: strangers" in capsys.readouterr().err


def test_a_trace_that_cannot_be_replayed_is_one_clear_error(trace: Path) -> None:
    records = read_trace(trace)
    records[0]["settings"]["colour"] = "red"
    with pytest.raises(UserError) as error:
        list(replay(records))
    assert error.value.exit_code == 65


def recorded(path: Path, site: str) -> Path:
    """The life of whoever leads a virtual swarm at two sites, with `site` as its owner's word in the first line."""
    settings = replace(SETTINGS, run="sim", stages=3, steps=20, lease_seconds=3.0, evaluate_every=0)
    world = World(settings, 1, delay_max=0.01)
    world.sites = 2
    founder = world.start("founder", 1)
    core = founder.participant
    trace = TraceWriter(path, {
        "peer": list(core.me), "run": "sim", "settings": asdict(settings), "chance": 7, "addresses": ["/sim/founder"],
        "hold": 1, "site": site, "wall": 0.0, "version": "test", "precision": "float32",
    })  # fmt: skip
    core.chance, handle = Random(7), core.handle

    def handled(event: Event, now: float) -> list[Effect]:
        trace.event(now, event)
        effects = handle(event, now)
        for effect in effects:
            if isinstance(effect, Note):
                trace.note(now, effect)
        return effects

    core.handle = handled  # type: ignore[method-assign]
    world.run(3.0)
    for number in range(2, 6):
        world.start(f"peer{number}", 1)
    world.run(60.0)
    assert core.leader is not None, "it leads"
    trace.close(60.0, "stopped")
    return path


def test_a_replay_goes_by_the_site_that_the_node_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who keeps copies depends on it."""

    def others(path: Path) -> list[Turn]:
        return [turn for turn in replay(read_trace(path)) if _kept(turn.now) != _kept(turn.then)]

    world = World(SETTINGS, 1)
    world.sites = 2
    where = world.site("founder")
    other = next(site for site in map(world.site, ("peer2", "peer5")) if site != where)
    assert not others(recorded(tmp_path / "as it was.jsonl", where))
    assert others(recorded(tmp_path / "another.jsonl", other))
    replay_module.main(tmp_path / "as it was.jsonl", as_json=False)
    assert f"site       {where}" in capsys.readouterr().out


def _kept(decisions: tuple[Decision, ...]) -> list[Decision]:
    return [decision for decision in decisions if decision.kind == "copies"]
