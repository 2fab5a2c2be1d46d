"""The audit of rebuilds that need more than two neighbours: interpolated stages, and copies that somebody kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ftnode.lab.audit.trace import Life, read_life
from ftnode.lab.audit.weights import Unusable, audit_weights, read_dump
from ftnode.node.driver.trace import TraceWriter, read_trace
from ftnode.protocol.words.events import KeepFailed, Kept
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version

SETTINGS = Settings(run="r" * 32, stages=4, steps=9, microbatches=2, window=2)
BASE = {"step": 7, "commit": "c7"}
COPY = {"step": 6, "commit": "c6"}
NEWCOMER, KEEPER, HOLDER = (Peer(name, 1) for name in ("newcomer", "keeper", "holder"))
Record = dict[str, Any]


def weights(seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=8).astype("<f4")


class Scene:
    """Lives with folders of their own, so that weights can lie beside them."""

    def __init__(self, directory: Path, settings: Settings = SETTINGS) -> None:
        self.directory, self.settings = directory, settings
        self.lives: dict[Peer, Life] = {}

    def life(self, peer: Peer) -> Life:
        if peer not in self.lives:
            folder = self.directory / peer.id
            folder.mkdir()
            self.lives[peer] = Life(folder / "trace.jsonl", peer, self.settings, ended=True)
        return self.lives[peer]

    def dump(self, peer: Peer, name: str, numbers: npt.NDArray[Any]) -> str:
        data = numbers.astype("<f4").tobytes()
        (self.life(peer).path.parent / name).write_bytes(data)
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    def export(
        self, peer: Peer, stage: int, purpose: str, to: Peer, numbers: npt.NDArray[Any], omega: float = 1.0
    ) -> str:
        """Recorded by the peer; the digest."""
        name = f"lent-{stage}-{to.id}.f32" if purpose == "install" else ""
        digest = self.dump(peer, name or "nowhere", numbers)
        version = BASE if purpose == "install" else COPY
        self.life(peer).exported.append(
            {**version, "stage": stage, "purpose": purpose, "norm_squared": omega, "digest": digest, "dump": name,
             "to": to.id}
        )  # fmt: skip
        return digest

    def install(
        self, stage: int, rung: str, donors: list[list[Any]], numbers: npt.NDArray[Any], copy_step: int | None = None
    ) -> Record:
        name = f"installed-{stage}.f32"
        record = {**BASE, "n": 5, "stage": stage, "rung": rung, "copy_step": copy_step, "donors": donors, "dump": name,
                  "digest": self.dump(NEWCOMER, name, numbers)}  # fmt: skip
        self.life(NEWCOMER).installed.append(record)
        for lender, (peer, _), *_ in donors:
            self.ask(peer, lender, BASE["step"] if copy_step is None else None)  # type: ignore[arg-type]
        return record

    def ask(self, peer: str, stage: int, step: int | None) -> None:
        """Recorded by the newcomer."""
        self.life(NEWCOMER).asked[(peer, stage, step)] += 1

    def audit(self) -> list[str]:
        return [finding.text for finding in audit_weights(list(self.lives.values()))[1]]


def interpolated(scene: Scene, stage: int, shares: tuple[float, float], lost: tuple[int, ...] = (2, 3)) -> Scene:
    """Stages 2 and 3 are lost; `stage` is made of stages 1 and 4, with ω 1 and 4."""
    lent = {1: weights(1), 4: weights(4)}
    donors = []
    for lender, omega in ((1, 1.0), (4, 4.0)):
        peer = Peer(f"holder-{lender}-for-{stage}", 1)
        digest = scene.export(peer, lender, "install", NEWCOMER, lent[lender], omega)
        donors.append([lender, list(peer), omega, digest])
    rebuilt = sum(share * donor.astype(float) for share, donor in zip(shares, lent.values()))
    scene.install(stage, "interpolate", donors, np.asarray(rebuilt))
    for other in set(lost) - {stage}:
        scene.install(other, "initial", [], weights(9))
    return scene


@pytest.mark.parametrize(
    ("stage", "change", "shares"),
    [
        (2, {}, (1 / 3, 2 / 3)),  # 1 · 1 and 4 · ½
        (3, {}, (1 / 9, 8 / 9)),  # 1 · ½ and 4 · 1
        (2, {"weighting": "uniform"}, (2 / 3, 1 / 3)),
        (2, {"norms": "after-clipping", "clip": 1.0}, (2 / 3, 1 / 3)),
        (3, {"weighting": "norm"}, (1 / 5, 4 / 5)),
    ],
)
def test_interpolated_stages_are_recomputed_as_the_manifest_says(
    stage: int, change: dict[str, Any], shares: tuple[float, float], tmp_path: Path
) -> None:
    assert interpolated(Scene(tmp_path, replace(SETTINGS, **change)), stage, shares).audit() == []


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.5, 0.5), (0.2, 0.8), (2 / 3, 1 / 3)])
def test_shares_without_distances_or_norms_are_found(shares: tuple[float, float], tmp_path: Path) -> None:
    (finding,) = interpolated(Scene(tmp_path), 2, shares).audit()
    assert "differ by" in finding


def test_a_survivor_that_was_passed_over_is_found(tmp_path: Path) -> None:
    (finding,) = interpolated(Scene(tmp_path), 2, (1 / 3, 2 / 3), lost=(2,)).audit()
    assert "stage 3 was there" in finding


def copied(scene: Scene, rung: str) -> tuple[Scene, Record]:
    """A holder gave stage 0 or 2 to its keeper at step 6, and the keeper to the newcomer at step 7."""
    stage, kept = (0 if rung == "head" else 2), weights(3)
    scene.export(HOLDER, stage, "keep", KEEPER, kept)
    scene.life(HOLDER).applied.append({**COPY, "stage": stage, "attempt": [0, 6], "skipped": False})
    scene.life(KEEPER).kept.add((stage, COPY["step"], COPY["commit"]))  # type: ignore[arg-type]
    digest = scene.export(KEEPER, stage, "copy", NEWCOMER, kept)
    return scene, scene.install(stage, rung, [[stage, list(KEEPER), 1.0, digest]], kept, copy_step=6)


@pytest.mark.parametrize("rung", ["head", "shadow"])
def test_a_copy_that_was_kept_and_lent_passes(rung: str, tmp_path: Path) -> None:
    assert copied(Scene(tmp_path), rung)[0].audit() == []


def other_weights(scene: Scene, record: Record) -> None:
    record["digest"] = scene.dump(NEWCOMER, record["dump"], weights(77))


def other_weights_all_along(scene: Scene, record: Record) -> None:
    other_weights(scene, record)
    scene.life(KEEPER).exported[0]["digest"] = record["donors"][0][3] = record["digest"]


def other_dump(scene: Scene, record: Record) -> None:
    scene.dump(NEWCOMER, record["dump"], weights(77))


def no_lending(scene: Scene, record: Record) -> None:
    scene.life(KEEPER).exported.clear()


def never_kept(scene: Scene, record: Record) -> None:
    scene.life(KEEPER).kept.clear()


def never_given(scene: Scene, record: Record) -> None:
    scene.life(HOLDER).exported.clear()


def never_applied(scene: Scene, record: Record) -> None:
    scene.life(HOLDER).applied.clear()


def from_the_future(scene: Scene, record: Record) -> None:
    record["copy_step"] = 8


def of_another_step(scene: Scene, record: Record) -> None:
    record["copy_step"] = 5


def of_no_step(scene: Scene, record: Record) -> None:
    record["copy_step"] = None


def of_another_stage(scene: Scene, record: Record) -> None:
    record["donors"][0][0] = 1


def lent_twice(scene: Scene, record: Record) -> None:
    scene.life(KEEPER).exported.append(dict(scene.life(KEEPER).exported[0]))


WRONG = [other_weights, other_weights_all_along, other_dump, no_lending, never_kept, never_given, never_applied,
         from_the_future, of_another_step, of_no_step, of_another_stage, lent_twice]  # fmt: skip


@pytest.mark.parametrize("rung", ["head", "shadow"])
@pytest.mark.parametrize("spoil", WRONG, ids=lambda spoil: spoil.__name__)
def test_a_copy_with_a_wrong_story_is_found(spoil: Callable[[Scene, Record], None], rung: str, tmp_path: Path) -> None:
    scene, record = copied(Scene(tmp_path), rung)
    spoil(scene, record)
    assert scene.audit()


@pytest.mark.parametrize("asked", [False, True])
def test_a_keeper_that_failed_before_another_gave_is_no_finding(asked: bool, tmp_path: Path) -> None:
    scene, _ = copied(Scene(tmp_path), "head")
    second = Peer("second", 1)
    scene.export(HOLDER, 0, "keep", second, weights(3))
    scene.life(second).kept.add((0, 6, "c6"))
    scene.export(second, 0, "copy", NEWCOMER, weights(3))
    if asked:
        scene.ask(second.id, 0, None)
    assert scene.audit() == (
        [] if asked else ["a copy of stage 0 was given 1 times to newcomer/trace.jsonl, which asked 0 times"]
    )


def test_copies_are_read_from_the_events_of_a_trace(tmp_path: Path) -> None:
    header = {"peer": ["me", 1], "run": "r", "settings": {"run": "r", "stages": 4, "steps": 9, "microbatches": 2,
              "window": 2}, "chance": 1, "addresses": [], "hold": 1, "site": "", "wall": 0.0, "version": "test",
              "precision": "float32"}  # fmt: skip
    writer = TraceWriter(tmp_path / "trace.jsonl", header)
    asked = {"stage": 0, "step": 7, "commit": "c7", "rung": "head", "donors": [[0, list(KEEPER)], [0, list(HOLDER)]]}
    writer.record("installing", 0.5, **asked, copies=True)
    writer.event(1.0, Kept(0, Version(6, "c6", Attempt(0, 6)), 480, 0.1))
    writer.event(2.0, KeepFailed(2, Version(6, "c6", Attempt(0, 6)), "gone"))
    writer.close(3.0, "stopped")
    life = read_life(tmp_path / "trace.jsonl", read_trace(tmp_path / "trace.jsonl"))
    assert life.kept == {(0, 6, "c6")} and life.findings == []
    assert life.asked == {("keeper", 0, None): 1, ("holder", 0, None): 1}


def test_dumps_are_read_in_the_precision_of_the_run(tmp_path: Path) -> None:
    numbers = weights(3).astype("<f8") / 3
    (tmp_path / "torn").write_bytes(numbers.tobytes()[:-4])
    (tmp_path / "whole").write_bytes(numbers.tobytes())
    torn, whole = (
        hashlib.blake2b((tmp_path / name).read_bytes(), digest_size=16).hexdigest() for name in ("torn", "whole")
    )
    life = Life(tmp_path / "trace.jsonl", NEWCOMER, SETTINGS, "float64")
    found = read_dump(life, "whole", whole)
    assert found.dtype == np.float64 and (found == numbers).all()
    with pytest.raises(Unusable, match="does not hold finite float64 numbers"):
        read_dump(life, "torn", torn)
    life.precision = "float16"
    with pytest.raises(Unusable, match="no precision"):
        read_dump(life, "whole", whole)


@pytest.mark.parametrize(
    ("begun", "donors", "findings"),
    [
        (1, [], []),
        (2, [], ["the run began with"]),
        (1, [[2, list(HOLDER), 1.0, "digest"]], ["has donors"]),
    ],
)
def test_a_stage_that_begins_again_has_the_weights_with_which_it_began(
    begun: int, donors: list[list[Any]], findings: list[str], tmp_path: Path
) -> None:
    scene = Scene(tmp_path)
    scene.install(2, "initial", [], weights(begun))
    scene.install(1, "initial", [], weights(9))
    scene.install(2, "first", donors, weights(1))
    found = scene.audit()
    assert len(found) == len(findings) and all(says in text for says, text in zip(findings, found))
