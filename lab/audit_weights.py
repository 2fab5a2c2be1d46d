"""Rebuilt weights, recomputed from what the donors had (design section 7; CheckFree, Algorithm 1).

The donors' and the newcomer's weights lie beside their traces as flat little-endian float32, each bound to the trace by
its digest. The blend is made again here with numpy in float64, by other code than the swarm's.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ftnode.lab.audit_trace import Finding, Life
from ftnode.protocol.types import Attempt, Rung

TOLERANCE = 1e-6
EXACT = (Rung.REPLICA, Rung.HANDOVER)
"""Rungs that copy bit by bit, with the optimiser's state: equal digests say all."""
Weights = npt.NDArray[np.float32]


class Unusable(Exception):
    """A rebuild that cannot be checked, and why."""


def audit_weights(lives: list[Life]) -> tuple[int, list[Finding]]:
    """Checks every rebuild of every trace; returns how many and what is wrong."""
    findings: list[Finding] = []
    rebuilds = 0
    for life in lives:
        for record in life.installed:
            if record["rung"] in (Rung.INITIAL, Rung.KEPT):
                continue
            rebuilds += 1
            try:
                _check_rebuild(lives, life, record)
            except Unusable as reason:
                text = f"stage {record['stage']} rebuilt at step {record['step']}: {reason}"
                findings.append(Finding("rebuild", text, f"{life.name} line {record['n']}"))
    findings += _check_exports(lives)
    return rebuilds, findings


def _check_rebuild(lives: list[Life], life: Life, record: dict[str, Any]) -> None:
    """Raises Unusable with what is wrong."""
    donors = record["donors"]
    _check_donors(record["rung"], record["stage"], [donor[0] for donor in donors])
    weights, omegas = [], []
    for stage, peer, omega, digest in donors:
        donor, export = _find_export(lives, peer, stage, record, life.peer.id, digest)
        if record["rung"] in EXACT:
            if record["digest"] != digest:
                raise Unusable(f"{record['rung']} of weights {digest} gave {record['digest']}")
            continue
        _check_omega(donor, export, omega)
        weights.append(read_dump(donor.path.parent, export["dump"], digest))
        omegas.append(float(omega))
    if record["rung"] in EXACT:
        return
    rebuilt = read_dump(life.path.parent, record["dump"], record["digest"])
    if any(donor.shape != rebuilt.shape for donor in weights):
        raise Unusable(f"{rebuilt.size} weights from donors with {[donor.size for donor in weights]}")
    expected = blend(weights, omegas) if record["rung"] == Rung.BLEND else weights[0].astype(np.float64)
    worst = float(np.max(np.abs(rebuilt - expected), initial=0.0))
    if not worst <= TOLERANCE:
        raise Unusable(f"the weights differ by {worst:.2e} from the {record['rung']} of their donors")


def _check_donors(rung: str, stage: int, donors: list[int]) -> None:
    expected = {
        Rung.BLEND: [[stage - 1, stage + 1]],
        Rung.COPY: [[stage - 1], [stage + 1]],
        Rung.REPLICA: [[stage]],
        Rung.HANDOVER: [[stage]],
    }
    if sorted(donors) not in expected.get(Rung(rung), []):
        raise Unusable(f"rung {rung} with donors of the stages {donors}")


def blend(weights: list[Weights], omegas: list[float]) -> npt.NDArray[np.float64]:
    """The average weighted by ω; uniform when Σω is zero or not finite (docs/protocol.md, section 6)."""
    total = sum(omegas)
    if not math.isfinite(total) or total <= 0:
        omegas, total = [1.0] * len(weights), float(len(weights))
    shares = [omega / total * donor.astype(np.float64) for omega, donor in zip(omegas, weights)]
    average: npt.NDArray[np.float64] = np.sum(shares, axis=0)
    return average


def _find_export(
    lives: list[Life], peer: list[Any], stage: int, record: dict[str, Any], to: str, digest: str
) -> tuple[Life, dict[str, Any]]:
    """The donor's own record of what it gave: same stage, same version, same newcomer, same weights."""
    wanted = (stage, record["step"], record["commit"], to, digest)
    for life in lives:
        if list(life.peer) == peer:
            for export in life.exported:
                if tuple(export[name] for name in ("stage", "step", "commit", "to", "digest")) == wanted:
                    return life, export
    raise Unusable(f"the donor of stage {stage} has no record of what it gave")


def _check_omega(donor: Life, export: dict[str, Any], omega: float) -> None:
    """ω as the newcomer used it, as the donor sent it, and as the donor's own reduction of that step found it."""
    if omega != export["norm_squared"]:
        raise Unusable(f"ω of stage {export['stage']} is {omega}, its donor says {export['norm_squared']}")
    stage, step = export["stage"], export["step"]
    attempts = [Attempt(*done["attempt"]) for done in donor.applied
                if (done["stage"], done["step"], done["skipped"]) == (stage, step, False)]  # fmt: skip
    for attempt in attempts:
        reduced = donor.norms.get((stage, step, attempt))
        if reduced is not None and not math.isclose(reduced, omega, rel_tol=1e-6):
            raise Unusable(f"ω of stage {stage} is {omega}, the squared norm of its step {step} was {reduced}")


def read_dump(directory: Path, name: str, digest: str) -> Weights:
    """A flat float32 file whose blake2b is `digest`. Raises Unusable."""
    path = directory / Path(name).name
    if not name or not path.is_file():
        raise Unusable(f"no dump {name!r} in {directory.name} to check")
    data = path.read_bytes()
    if hashlib.blake2b(data, digest_size=len(digest) // 2 or 1).hexdigest() != digest:
        raise Unusable(f"{path.name} in {directory.name} is not what its digest says")
    weights = np.frombuffer(data, dtype="<f4") if len(data) % 4 == 0 else np.empty(0, dtype="<f4")
    if not weights.size or not np.isfinite(weights).all():
        raise Unusable(f"{path.name} in {directory.name} does not hold finite float32 numbers")
    return weights


def _check_exports(lives: list[Life]) -> list[Finding]:
    """Every export went into one install, or into one that failed or died with its newcomer."""
    findings = []
    by_id = {life.peer.id: life for life in lives}
    used: Counter[tuple[Any, ...]] = Counter()
    for life in lives:
        for record in life.installed:
            for stage, peer, _, digest in record["donors"]:
                used[(peer[0], stage, record["step"], record["commit"], life.peer.id, digest)] += 1
    for life in lives:
        given = Counter(
            (life.peer.id, *(record[name] for name in ("stage", "step", "commit", "to", "digest")))
            for record in life.exported
        )
        for key, number in given.items():
            newcomer = by_id.get(key[4])
            excuse = sum(newcomer.install_failures.values()) if newcomer else 0
            excuse += int(newcomer is None or not newcomer.ended)
            if number > used[key] + excuse:
                text = f"stage {key[1]} at step {key[2]} was given {number} times for {used[key]} rebuilds"
                findings.append(Finding("rebuild", text, life.name))
    return findings
