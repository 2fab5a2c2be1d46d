"""Rebuilt weights, recomputed from what the donors had (docs/explanation/recovery.md; CheckFree, Algorithm 1).

The donors' and the newcomer's weights lie beside their traces as flat little-endian numbers of the run's precision,
each bound to the trace by its digest. The blend is made again here with numpy in float64, by other code than the
swarm's. A kept copy is followed from the holder that gave it to its keeper, and from there to the newcomer: its
digest, which is of the weights after they are decoded, must stay the same on the whole way.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ftnode.lab.audit.trace import Finding, Life
from ftnode.protocol.manifest.sections import NUMBER_BYTES
from ftnode.protocol.words.donor_shares import shares
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Rung

TOLERANCE = 1e-6
EXACT = Rung.REPLICA
"""Rungs that copy bit by bit, with the optimiser's state: equal digests say all."""
COPIES = (Rung.HEAD, Rung.SHADOW)
"""Rungs that take a copy that somebody kept."""
Weights = npt.NDArray[np.float32] | npt.NDArray[np.float64]


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
    findings += _check_kept(lives)
    return rebuilds, findings


def _check_rebuild(lives: list[Life], life: Life, record: dict[str, Any]) -> None:
    """Raises Unusable with what is wrong."""
    donors, rung = record["donors"], Rung(record["rung"])
    if rung is Rung.FIRST:
        _check_first(lives, record)
        return
    _check_donors(lives, record, life.settings)
    if rung is Rung.SNAPSHOT:
        _check_snapshot(lives, record)
        return
    if rung in COPIES:
        _check_copy(lives, life, record)
        return
    weights, omegas = [], []
    for stage, peer, omega, digest in donors:
        donor, export = _find_export(lives, peer, stage, record, life.peer.id, digest)
        if rung is EXACT:
            if record["digest"] != digest:
                raise Unusable(f"{rung} of weights {digest} gave {record['digest']}")
            continue
        _check_omega(donor, export, omega)
        weights.append(read_dump(donor, export["dump"], digest))
        omegas.append(float(omega))
    if rung is EXACT:
        return
    rebuilt = read_dump(life, record["dump"], record["digest"])
    if any(donor.shape != rebuilt.shape for donor in weights):
        raise Unusable(f"{rebuilt.size} weights from donors with {[donor.size for donor in weights]}")
    distances = [abs(donor[0] - record["stage"]) for donor in donors]
    expected = blend(weights, omegas, distances, life.settings)
    worst = float(np.max(np.abs(rebuilt - expected), initial=0.0))
    if not worst <= TOLERANCE:
        raise Unusable(f"the weights differ by {worst:.2e} from the {rung} of their donors")


def _check_first(lives: list[Life], record: dict[str, Any]) -> None:
    """Raises Unusable unless the stage has the weights with which it began."""
    begun = {
        other["digest"]
        for life in lives
        for other in life.installed
        if other["rung"] == Rung.INITIAL and other["stage"] == record["stage"]
    }
    if record["donors"]:
        raise Unusable("the model that the run goes on from has donors")
    if begun and begun != {record["digest"]}:
        raise Unusable(f"it is {record['digest']}, and the run began with {', '.join(sorted(begun))}")


def _check_snapshot(lives: list[Life], record: dict[str, Any]) -> None:
    """Raises Unusable unless the weights from a disk are those that the commit made, as whoever told their hash had
    them, and as all who started again with them."""
    key = record["stage"], record["commit"]
    made = {life.hashed[key] for life in lives if key in life.hashed}
    made |= {digest for _, _, _, digest in record["donors"]}
    if made != {record["digest"]}:
        raise Unusable(f"a snapshot gave {record['digest']}, and step {record['step']} made {', '.join(sorted(made))}")


def _check_donors(lives: list[Life], record: dict[str, Any], settings: Settings) -> None:
    """The stages that lend are those of the rung; whoever is nearer than they are was lost at the same time."""
    rung, stage, donors = Rung(record["rung"]), record["stage"], sorted(donor[0] for donor in record["donors"])
    blocks = all(1 <= donor <= settings.stages and donor != stage for donor in donors)
    match rung:
        case Rung.BLEND:
            fits = donors == [stage - 1, stage + 1]
        case Rung.INTERPOLATE:
            fits = blocks and len(donors) == 2 and donors[0] < stage < donors[1]
        case Rung.COPY:
            fits = blocks and len(donors) == 1
        case _:
            fits = donors == [stage]
    if not fits:
        raise Unusable(f"rung {rung} with donors of the stages {donors}")
    lost = {other["stage"] for life in lives for other in life.installed if other["step"] == record["step"]}
    nearer = {other for donor in donors for other in range(min(donor, stage) + 1, max(donor, stage))}
    if nearer - lost:
        raise Unusable(f"rung {rung} with donors of the stages {donors}, though stage {min(nearer - lost)} was there")


def _check_copy(lives: list[Life], life: Life, record: dict[str, Any]) -> None:
    """Raises Unusable unless the newcomer has what its keeper kept, and that is what a holder once gave to it."""
    stage, peer, _, digest = record["donors"][0]
    step = record["copy_step"]
    if type(step) is not int or not 0 < step <= record["step"]:
        raise Unusable(f"a copy of step {step}")
    if record["digest"] != digest:
        raise Unusable(f"a copy of weights {digest} gave {record['digest']}")
    if record["dump"]:
        read_dump(life, record["dump"], digest)
    keepers = [other for other in lives if list(other.peer) == peer]
    lent = [
        (keeper, export)
        for keeper in keepers
        for export in keeper.exported
        if (export["purpose"], export["stage"], export["step"], export["to"], export["digest"])
        == ("copy", stage, step, life.peer.id, digest)
    ]
    if not lent:
        raise Unusable("its keeper has no record of what it gave")
    keeper, given = lent[0]
    if (stage, step, given["commit"]) not in keeper.kept:
        raise Unusable(f"its keeper never had a copy of step {step}")
    origins = [
        export
        for holder in lives
        if _had(holder, stage, step, given["commit"])
        for export in holder.exported
        if _is_keep(export, stage, step, given["commit"], keeper.peer.id) and export["digest"] == digest
    ]
    if not origins:
        raise Unusable(f"no holder of step {step} gave these weights to their keeper")


def _is_keep(export: dict[str, Any], stage: int, step: int, commit: str, to: str) -> bool:
    found = tuple(export[name] for name in ("purpose", "stage", "step", "commit", "to"))
    return found == ("keep", stage, step, commit, to)


def _had(holder: Life, stage: int, step: int, commit: str) -> bool:
    """Whether this life applied or installed these weights."""
    return any(
        (done["stage"], done["step"], done["commit"]) == (stage, step, commit)
        for done in (*holder.applied, *holder.installed)
    )


def blend(
    weights: list[Weights], omegas: list[float], distances: list[int], settings: Settings
) -> npt.NDArray[np.float64]:
    """The average by the run's weighting (docs/explanation/protocol.md, section 6)."""
    clip = settings.clip if settings.norms == "after-clipping" else float("inf")
    parts = shares(omegas, distances, settings.weighting, clip)
    average: npt.NDArray[np.float64] = np.sum(
        [share * donor.astype(np.float64) for share, donor in zip(parts, weights)], axis=0
    )
    return average


def _find_export(
    lives: list[Life], peer: list[Any], stage: int, record: dict[str, Any], to: str, digest: str
) -> tuple[Life, dict[str, Any]]:
    """The donor's own record of what it gave: same stage, same version, same newcomer, same weights. Who was given
    them twice, as a learner of the donor's stage and then to rebuild its neighbour, has them in a file once."""
    wanted = ("install", stage, record["step"], record["commit"], to, digest)
    found = [
        (life, export)
        for life in lives
        if list(life.peer) == peer
        for export in life.exported
        if tuple(export[name] for name in ("purpose", "stage", "step", "commit", "to", "digest")) == wanted
    ]
    for life, export in found:
        if export["dump"]:
            return life, export
    if found:
        return found[0]
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


def read_dump(life: Life, name: str, digest: str) -> Weights:
    """A flat file beside the trace whose blake2b is `digest`. Raises Unusable."""
    directory = life.path.parent
    path = directory / Path(name).name
    if not name or not path.is_file():
        raise Unusable(f"no dump {name!r} in {directory.name} to check")
    data = path.read_bytes()
    if hashlib.blake2b(data, digest_size=len(digest) // 2 or 1).hexdigest() != digest:
        raise Unusable(f"{path.name} in {directory.name} is not what its digest says")
    size = NUMBER_BYTES.get(life.precision, 0)
    if size < NUMBER_BYTES["float32"]:  # weights are never bfloat16
        raise Unusable(f"{life.name} has weights of {life.precision}, which is no precision")
    weights: Weights = np.frombuffer(data[: len(data) // size * size], dtype=f"<f{size}")
    if not weights.size or len(data) % size or not np.isfinite(weights).all():
        raise Unusable(f"{path.name} in {directory.name} does not hold finite {life.precision} numbers")
    return weights


def _check_exports(lives: list[Life]) -> list[Finding]:
    """Nobody was given weights more often than it says that it asked for them. What was asked for may come to nothing,
    where another plan takes the place of one, or another donor fails. The trace of a node that did not end may have
    ended before it (a full disk)."""
    findings = []
    for life in lives:
        given = Counter(
            (record["to"], record["stage"], None if record["purpose"] == "copy" else record["step"])
            for record in life.exported
            if record["purpose"] not in ("keep", "sample")
        )
        for (to, stage, step), number in given.items():
            newcomers = [other for other in lives if other.peer.id == to]
            asked = sum(newcomer.asked[(life.peer.id, stage, step)] for newcomer in newcomers)
            if newcomers and all(newcomer.ended for newcomer in newcomers) and number > asked:
                what = f"a copy of stage {stage}" if step is None else f"stage {stage} at step {step}"
                text = f"{what} was given {number} times to {newcomers[-1].name}, which asked {asked} times"
                findings.append(Finding("rebuild", text, life.name))
    return findings


def _check_kept(lives: list[Life]) -> list[Finding]:
    """Every copy was given by somebody."""
    return [
        Finding("copy", f"a copy of stage {stage} at step {step} that nobody gave", life.name)
        for life in lives
        for stage, step, commit in sorted(life.kept)
        if not any(_is_keep(export, stage, step, commit, life.peer.id) for other in lives for export in other.exported)
    ]
