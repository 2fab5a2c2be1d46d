"""The audit passes a correct run and no other."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftnode.lab.audit import audit as audit_module
from ftnode.lab.audit.audit import audit
from ftnode.lab.audit.steps import audit_steps
from ftnode.lab.audit.trace import read_lives
from ftnode.node.driver.trace import read_trace
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import Attempt, Version, next_version
from tests.lab.audit.miniature import LINEAGE, NAMES, STEPS, Miniature, change

SEMANTIC = ("accumulated", "reduced", "applied", "commit", "installed", "exported", "view")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Miniature(tmp_path_factory.mktemp("miniature") / "run").write()


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def test_a_correct_run_passes(run: Path) -> None:
    findings = audit(run)
    assert findings.passed, [str(finding) for finding in findings.findings]
    assert (findings.steps_committed, findings.rebuilds, findings.views) == (4, 1, 3)
    assert (findings.duplicates_applied, findings.microbatches_lost) == (0, 0)


def test_folders_of_several_homes_count_as_one(run: Path, tmp_path: Path) -> None:
    """A trace that is below two of them, once."""
    (there := tmp_path / "there").mkdir()
    (run / NAMES[0]).rename(there / NAMES[0])
    assert not audit(run).passed, "one node's trace is missing"
    findings = audit(run, there, run, there / NAMES[0])
    assert findings.passed and findings.traces == len(NAMES), [str(finding) for finding in findings.findings]
    with pytest.raises(UserError, match=f"no trace below {tmp_path / 'none'}"):
        audit(run, tmp_path / "none")


@pytest.mark.parametrize("text", [None, "", '{"n": 0, "t": 1.0, "k": "sta'])
def test_a_folder_without_a_record_does_not_pass(text: str | None, tmp_path: Path) -> None:
    """Also where traces are there in which nothing stands, or which end in their first line."""
    if text is not None:
        (tmp_path / "trace.jsonl").write_text(text)
    with pytest.raises(UserError, match="no trace below") as caught:
        audit(tmp_path)
    assert caught.value.exit_code == 66


def semantic_records(run: Path) -> list[tuple[str, int, str]]:
    found = []
    for name in NAMES:
        for index, record in enumerate(read_trace(run / name / "trace.jsonl")):
            if record["k"] in SEMANTIC:
                found.append((name, index, record["k"]))
    return found


def is_undecidable(run: Path, name: str, index: int) -> bool:
    """A killed node's trace that ends one record earlier is that of a node killed a moment earlier."""
    return name == "middle" and index == len(read_trace(run / name / "trace.jsonl")) - 1


@pytest.mark.parametrize("kind", SEMANTIC)
def test_any_record_removed_is_found_though_renumbered(original: Path, tmp_path: Path, kind: str) -> None:
    tried = 0
    for name, index, found in semantic_records(original):
        if found != kind or is_undecidable(original, name, index):
            continue
        run = Path(shutil.copytree(original, tmp_path / f"{name}-{index}"))
        change(run, lambda traces, name=name, index=index: traces[name].pop(index))  # type: ignore[misc]
        assert not audit(run).passed, f"removed {kind} {index} of {name}"
        tried += 1
    assert tried > 0


@pytest.mark.parametrize("kind", SEMANTIC)
def test_any_record_doubled_is_found_though_renumbered(original: Path, tmp_path: Path, kind: str) -> None:
    tried = 0
    for name, index, found in semantic_records(original):
        if found != kind:
            continue
        run = Path(shutil.copytree(original, tmp_path / f"{name}-{index}"))
        change(run, lambda traces, name=name, index=index: traces[name].insert(index, dict(traces[name][index])))  # type: ignore[misc]
        assert not audit(run).passed, f"doubled {kind} {index} of {name}"
        tried += 1
    assert tried > 0


def test_any_line_removed_or_doubled_shows_in_the_sequence(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / "first" / "trace.jsonl"
    lines = (original / "first" / "trace.jsonl").read_text().splitlines(keepends=True)
    for index in range(1, len(lines) - 1):
        for altered in (lines[:index] + lines[index + 1 :], [*lines[: index + 1], *lines[index:]]):
            shutil.copytree(original, tmp_path / "run", dirs_exist_ok=True)
            path.write_text("".join(altered))
            assert not audit(tmp_path / "run").passed, f"line {index}"


def test_a_gradient_counted_twice_with_its_event_is_found_and_counted(run: Path) -> None:
    def double(traces: dict[str, list[dict[str, Any]]]) -> None:
        records = traces["first"]
        index = next(i for i, record in enumerate(records) if record["k"] == "accumulated")
        records[index + 1 : index + 1] = [dict(records[index - 1]), dict(records[index])]
        reduced = next(record for record in records if record["k"] == "reduced")
        reduced["covered"].append([records[index]["microbatch"], records[index]["visit"]])

    change(run, double)
    findings = audit(run)
    assert not findings.passed
    assert findings.duplicates_applied == 1


def test_a_gradient_that_never_was_is_found_and_counted(run: Path) -> None:
    def lose(traces: dict[str, list[dict[str, Any]]]) -> None:
        records = traces["last"]
        index = next(i for i, record in enumerate(records) if record["k"] == "accumulated")
        lost = [records[index]["microbatch"], records[index]["visit"]]
        del records[index - 1 : index + 1]
        reduced = next(record for record in records if record["k"] == "reduced")
        reduced["covered"].remove(lost)

    change(run, lose)
    findings = audit(run)
    assert not findings.passed
    assert findings.microbatches_lost == 1


@pytest.mark.parametrize("skipped", [True, False])
def test_a_task_that_a_skipped_step_cut_short_may_end_after_it(run: Path, skipped: bool) -> None:
    """The weights are still those that its gradient was made on, which they are not where the step counted."""

    def end_late(traces: dict[str, list[dict[str, Any]]]) -> None:
        before = next(r for r in traces["head"] if r["k"] == "commit" and r["step"] == STEPS - 1)
        base = Version(STEPS - 1, before["commit"], Attempt(*before["attempt"]))
        for records in traces.values():
            for record in records:
                if skipped and record["k"] in ("applied", "commit") and record["step"] == STEPS:
                    commit = next_version(base, LINEAGE.id, Attempt(2, 1), True).commit
                    record.update(attempt=[2, 1], commit=commit, skipped=True)
        records = traces["first"]
        (at,) = (i for i, r in enumerate(records) if r["k"] == "applied" and r["step"] == STEPS)
        late = max(i for i, r in enumerate(records) if r["k"] == "accumulated")
        visit = [records[late]["microbatch"], records[late]["visit"]]
        next(r for r in reversed(records) if r["k"] == "reduced")["covered"].remove(visit)
        records[at + 1 : at + 1] = records[late - 1 : late + 1]
        del records[late - 1 : late + 1]

    change(run, end_late)
    wrong = [finding.text for finding in audit(run).findings if finding.rule == "version"]
    assert wrong == ([] if skipped else [f"stage 1 works on step {STEPS} with the weights after step {STEPS}"])


def test_a_step_committed_as_two_attempts_is_found(run: Path) -> None:
    def commit_again(traces: dict[str, list[dict[str, Any]]]) -> None:
        head = traces["head"]
        index = next(i for i, record in enumerate(head) if record["k"] == "commit" and record["step"] == 2)
        head.insert(index, {**head[index], "attempt": [0, 9], "commit": "0" * 24})

    change(run, commit_again)
    assert any("committed twice" in finding.text for finding in audit(run).findings)


def test_two_views_of_one_number_are_found(run: Path) -> None:
    def split(traces: dict[str, list[dict[str, Any]]]) -> None:
        record = next(record for record in traces["last"] if record["k"] == "view" and record["view"][2] == 1)
        record["view"][-2] = "another reason"

    change(run, split)
    assert any("two different views" in finding.text for finding in audit(run).findings)


@pytest.mark.parametrize("given_up", [True, False])
def test_a_view_that_was_given_up_may_be_taken_up_again(run: Path, given_up: bool) -> None:
    """Its leader stood still, and was heard of again. The core says a reason once while it stays the same."""

    def take_up_again(traces: dict[str, list[dict[str, Any]]]) -> None:
        last = traces["last"]
        index, record = next((i, record) for i, record in enumerate(last) if record["k"] == "view")
        gone = {"k": "note", "t": record["t"], "kind": "gone", "text": "the view is given up: nobody", "fields": {}}
        last[index + 1 : index + 1] = [gone, record] if given_up else [record]

    change(run, take_up_again)
    assert audit(run).passed is given_up


def cut(run: Path, kind: str) -> None:
    """The killed holder's trace ends before its last record of that kind in step 2, and before that record's event."""

    def end_earlier(traces: dict[str, list[dict[str, Any]]]) -> None:
        middle = traces["middle"]
        last = max(i for i, record in enumerate(middle) if record["k"] == kind and record["step"] == 2)
        del middle[last - (kind != "applied") :]

    change(run, end_earlier)


@pytest.mark.parametrize("kind", ["applied", "reduced"])
def test_a_holder_killed_after_its_last_visit_is_excused_by_its_rebuild_alone(run: Path, kind: str) -> None:
    """Rule 18 (ii): all others were Ready, the step was committed without the dead holder, its stage came back after
    it. The survivors can be Ready before the dead one had reduced: their own last visits need only its last."""
    cut(run, kind)
    findings = audit(run)
    assert findings.passed, [str(finding) for finding in findings.findings]

    def never_rebuild(traces: dict[str, list[dict[str, Any]]]) -> None:
        traces["standby"][:] = [record for record in traces["standby"] if record["k"] in ("start", "view", "end")]

    change(run, never_rebuild)
    assert not audit(run).passed


def test_a_holder_lost_in_the_last_step_that_there_is_needs_no_rebuild(run: Path) -> None:
    cut(run, "applied")

    def end_there(traces: dict[str, list[dict[str, Any]]]) -> None:
        for name in ("head", "first", "last", "standby"):
            last = max(i for i, r in enumerate(traces[name]) if r["k"] == "view" and r["view"][2] <= 1)
            traces[name][last + 1 : -1] = []

    change(run, end_there)
    findings = audit(run)
    assert findings.passed, [str(finding) for finding in findings.findings]
    assert findings.steps_committed == 2


@pytest.mark.parametrize("told", [False, True])
def test_a_holder_that_stopped_before_it_was_told_of_the_last_commit_is_excused(run: Path, told: bool) -> None:
    """All nodes were stopped together: the leader had just committed."""

    def stop_there(traces: dict[str, list[dict[str, Any]]]) -> None:
        first = traces["first"]
        applied = max(i for i, record in enumerate(first) if record["k"] == "applied")
        first[applied - (not told) : -1] = []

    change(run, stop_there)
    findings = audit(run)
    assert findings.passed is not told, [str(finding) for finding in findings.findings]
    assert findings.microbatches_lost == (3 if told else 0)


def test_a_holder_killed_before_its_last_visit_excuses_nothing(run: Path) -> None:
    cut(run, "accumulated")
    findings = audit(run)
    assert findings.microbatches_lost == 1
    assert any(finding.rule == "exactly once" for finding in findings.findings)


@pytest.mark.parametrize(
    ("killed", "visit", "lost"),
    [(["head"], 0, 0), (["head"], 4, 1), (["head", "first"], 1, 0), (["first"], 1, 1), (["first", "middle"], 2, 1)],
)
def test_holders_killed_before_their_last_gradients_are_excused_when_nobody_else_waits_for_these(
    run: Path, killed: list[str], visit: int, lost: int
) -> None:
    """The others are Ready once all gradients are on their way to where the routes start, not before."""
    lives = {life.path.parent.name: life for life in read_lives(run)}
    commit = next(record["commit"] for record in lives["head"].commits if record["step"] == 2)
    for name in killed:
        life, stage = lives[name], NAMES.index(name)
        key = next(key for key in life.reduced if key[:2] == (stage, 2))
        del life.reduced[key]
        life.accumulated[key].pop((2, visit), None)
        life.applied = [record for record in life.applied if record["commit"] != commit]
        standby, last = lives["standby"], lives["last"].views[-1]
        standby.installed.append({"stage": stage, "commit": commit})
        holders = [(standby.peer,) if at == stage else group for at, group in enumerate(last.holders)]
        standby.views.append(replace(last, holders=tuple(holders)))
    audited = audit_steps(list(lives.values()))
    assert audited.microbatches_lost == lost
    assert [finding.rule for finding in audited.findings] == ["exactly once"] * lost


def rewrite_rebuilt(run: Path, weights: np.ndarray[Any, Any]) -> None:
    """Other weights in the rebuilt stage, with a digest that fits them everywhere."""
    data = weights.astype("<f4").tobytes()
    (run / "standby" / "installed-2.f32").write_bytes(data)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    text = (run / "standby" / "trace.jsonl").read_text()
    old = next(record["digest"] for record in map(json.loads, text.splitlines()) if record["k"] == "installed")
    (run / "standby" / "trace.jsonl").write_text(text.replace(old, digest))


def donor_weights(run: Path) -> list[np.ndarray[Any, Any]]:
    names = ("first/exported-1.f32", "last/exported-3.f32")
    return [np.frombuffer((run / name).read_bytes(), dtype="<f4") for name in names]


def test_rewriting_with_the_right_weights_passes(run: Path) -> None:
    """Guards the tests below: they fail because of the weights and not because of the rewriting."""
    first, last = donor_weights(run)
    rewrite_rebuilt(run, (3.0 * first.astype(float) + 5.0 * last.astype(float)) / 8.0)
    assert audit(run).passed


@pytest.mark.parametrize("wrong", ["random", "copied", "uniform", "swapped", "unsquared"])
def test_weights_that_are_not_the_blend_are_found(run: Path, wrong: str) -> None:
    first, last = (donor.astype(float) for donor in donor_weights(run))
    weights = {
        "random": np.random.default_rng(5).normal(size=8),
        "copied": first,
        "uniform": (first + last) / 2,
        "swapped": (5.0 * first + 3.0 * last) / 8.0,
        "unsquared": (3.0**0.5 * first + 5.0**0.5 * last) / (3.0**0.5 + 5.0**0.5),
    }[wrong]
    rewrite_rebuilt(run, weights)
    findings = audit(run)
    assert [finding.rule for finding in findings.findings] == ["rebuild"], findings.findings


def test_a_dump_that_is_not_what_the_donor_recorded_is_found(run: Path) -> None:
    path = run / "first" / "exported-1.f32"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert any("not what its digest says" in finding.text for finding in audit(run).findings)


@pytest.mark.parametrize("asked", [1, 2])
def test_weights_given_more_often_than_they_were_asked_for_are_found(run: Path, asked: int) -> None:
    """Asked for twice: for a plan that another took the place of, or first to learn the donor's own stage, without a
    file, and then to rebuild the stage beside it. Both are in order, and the file is found."""

    def give_twice(traces: dict[str, list[dict[str, Any]]]) -> None:
        index = next(i for i, record in enumerate(traces["first"]) if record["k"] == "exported")
        traces["first"].insert(index, {**traces["first"][index], "dump": ""})
        install = next(i for i, record in enumerate(traces["standby"]) if record["k"] == "installing")
        traces["standby"][install:install] = [traces["standby"][install]] * (asked - 1)

    change(run, give_twice)
    texts = [finding.text for finding in audit(run).findings]
    wrong = "stage 1 at step 2 was given 2 times to standby/trace.jsonl, which asked 1 times"
    assert texts == ([] if asked == 2 else [wrong])


def test_an_omega_that_is_not_the_norm_of_the_commit_is_found(run: Path) -> None:
    def lie(traces: dict[str, list[dict[str, Any]]]) -> None:
        next(record for record in traces["first"] if record["k"] == "exported")["norm_squared"] = 4.0
        next(record for record in traces["standby"] if record["k"] == "installed" and record["donors"])["donors"][0][
            2
        ] = 4.0

    change(run, lie)
    assert any("squared norm of its step" in finding.text for finding in audit(run).findings)


def test_a_torn_last_line_is_a_killed_node_and_a_torn_middle_is_an_error(run: Path) -> None:
    path = run / "middle" / "trace.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n":99,"t":1.0,"k":"acc')
    assert audit(run).passed
    path.write_bytes(whole + b'{"n":99,"t":1.0,"k":"acc\n')
    with pytest.raises(UserError):
        audit(run)


def test_a_live_node_without_an_end_is_found(run: Path) -> None:
    change(run, lambda traces: traces["last"].pop())  # type: ignore[arg-type,return-value]
    assert any(finding.rule == "end" for finding in audit(run).findings)


def test_a_folder_without_traces_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        audit(tmp_path)
    assert error.value.exit_code == 66


def test_exit_codes_and_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit_module.main(run, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    change(run, lambda traces: traces["head"].pop(5))  # type: ignore[arg-type,return-value]
    assert audit_module.main(run, as_json=False) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A run whose last stage has two holders."""
    return Miniature(tmp_path / "pair", replica=True).write()


def test_a_correct_run_with_two_holders_passes(pair: Path) -> None:
    findings = audit(pair)
    assert findings.passed, [str(finding) for finding in findings.findings]
    assert findings.replicas_compared == 4


@pytest.mark.parametrize("name", ["last", "replica"])
@pytest.mark.parametrize("step", [1, 3, 4])
@pytest.mark.parametrize("what", ["gradients", "weights"])
def test_a_replica_that_is_not_equal_is_found(pair: Path, what: str, step: int, name: str) -> None:
    old = {"gradients": f'"gradient 3 {step}"', "weights": f'"weights 3 {step}"'}[what]
    path = pair / name / "trace.jsonl"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, '"other"'))
    found = audit(pair).findings
    assert [finding.rule for finding in found] == ["replicas"]
    assert f"different {what} of step {step}" in found[0].text


def test_weights_that_only_one_holder_tells_are_not_compared(pair: Path) -> None:
    change(pair, lambda traces: traces.update({"last": [r for r in traces["last"] if r["k"] != "hashed"]}))
    findings = audit(pair)
    assert findings.passed and findings.replicas_compared == 0
