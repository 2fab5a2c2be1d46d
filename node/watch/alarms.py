"""What a person should know at once of a run: stages that are in danger, and stages that were lost with what they had
learnt. Told by status, dashboard and, before it ends at once, the node that would lose them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ftnode.protocol.picture import Picture
from ftnode.protocol.recovery.rungs import LOSSY, Available, filled_from
from ftnode.protocol.words.site import decided_by_one_site, held_by_one_site
from ftnode.protocol.words.types import HEAD, Peer, Rung, names_of, spoken_stage

WORSE: Final = 0.02
"""Of the validation loss before: by so much worse it still counts as not made good."""
STEPS_ALARMED: Final = 100
"""Where nobody validates, a lost stage is told of for so many steps."""
COPIED: Final = frozenset((Rung.HEAD, Rung.SHADOW))
"""Of a stage that goes on from a copy some steps old: no alarm, unless a validation says that it cost something."""


def alarms(picture: Picture, now: float) -> tuple[str, ...]:
    """Most urgent first; empty where all is well, and after the end of the run."""
    if picture.view is None or picture.finished:
        return ()
    return (
        *_silent(picture, now), *_left_out(picture), *_in_danger(picture, now), *_lost(picture), *_at_one_site(picture)
    )  # fmt: skip


def only_here(picture: Picture, leavers: Collection[Peer], now: float) -> tuple[int, ...]:
    """Stages that these hold, and nobody else that we hear."""
    groups = picture.view.holders if picture.view is not None else ()
    heard = [{peer for peer in group if peer == picture.me or not picture.signs.silent(peer, now)} for group in groups]
    return tuple(stage for stage, group in enumerate(heard) if group and group <= {*leavers})


def head_wanted(picture: Picture, why_not: str) -> str:
    """What a node waits for that would hold the head if it could: nobody does. `why_not`: why it cannot, and what to
    do; empty where it can."""
    if not why_not or picture.view is None or picture.view.holders[HEAD]:
        return ""
    return f"somebody to hold the head, which this node cannot: {why_not}"


def own_waiting(picture: Picture) -> str:
    """What our node waits for, in words. Who learns a stage does not look for one."""
    learnt = [stage for stage, peer in picture.learners if peer == picture.me]
    if not (picture.waiting and learnt) or picture.member or picture.over:
        return picture.waiting
    return f"{names_of(learnt)}, which it learns, to be its own"


def what_would_be_lost(picture: Picture, stored: Mapping[int, int], now: float) -> str:
    """For a node that is about to leave: what its end at once would cost the run; empty where it costs nothing, and
    after the end of the run. `stored`: stage → step of the newest snapshot on this disk."""
    if picture.finished:
        return ""
    stages = [stage for stage in only_here(picture, (picture.me,), now) if stage in picture.versions]
    trained = [stage for stage in stages if picture.versions[stage].step > 0]
    if not trained:
        return ""
    copies, ways = _copies(picture), defaultdict[str, list[int]](list)
    held = frozenset(range(picture.settings.stage_count)) - {*stages}
    for stage in trained:
        left = Available(picture.highest_step, held, {stage: step for stage, (step, _) in copies.items()}, ())
        ways[_comes_back(stage, *filled_from(stage, left, picture.settings), copies)].append(stage)
    told = "; ".join(f"{names_of(group)} {way}" for way, group in ways.items())
    return f"nobody else holds {names_of(trained)}; without this node {told}{on_disk(trained, stored)}"


def on_disk(stages: Iterable[int], stored: Mapping[int, int]) -> str:
    """The end of a sentence about stages that go: which of them this disk has. `stored`: as `what_would_be_lost`."""
    kept = [stage for stage in stages if stage in stored]
    return f"; this disk has {names_of(kept)} as of step {min(stored[stage] for stage in kept)}" if kept else ""


def _comes_back(
    stage: int, rung: Rung | None, _lenders: Sequence[int], reason: str, copies: Mapping[int, tuple[int, Peer]]
) -> str:
    if rung is None:
        return f"would be lost, and the run would stop: {reason}"
    if rung in COPIED:
        step, keeper = copies[stage]
        return f"would go back to {keeper}'s copy of step {step}"
    return f"would start again from {rung.spoken}, without what was learnt"


def _copies(picture: Picture) -> dict[int, tuple[int, Peer]]:
    """Stage → step of the newest copy that another member keeps, and who."""
    others = [(peer, report) for peer, report in picture.reports.items() if peer != picture.me]
    found = sorted((copy.stage, copy.step, peer) for peer, report in others for copy in report.copies)
    return {stage: (step, peer) for stage, step, peer in found}


def _silent(picture: Picture, now: float) -> Iterable[str]:
    """Of holders that would be heard here."""
    assert picture.view is not None
    gone = {peer for peer in picture.watched if picture.signs.silent(peer, now)}
    if stages := [stage for stage, group in enumerate(picture.view.holders) if group and {*group} <= gone]:
        peers = ", ".join(str(peer) for peer in sorted({*gone} & {p for s in stages for p in picture.view.holders[s]}))
        yield f"{names_of(stages)} may be lost: no word from {peers}, and nobody else has it"


def _left_out(picture: Picture) -> Iterable[str]:
    """Those that nobody holds, while the others train."""
    assert picture.view is not None
    for stage in picture.view.omitted:
        since = picture.history.left_out_since(stage)
        verb = "is left out" + (f" since step {since}" if since is not None else "")
        yield f"{spoken_stage(stage)} {verb}: nobody holds it, and it comes back when a volunteer with room joins"


def _in_danger(picture: Picture, now: float) -> Iterable[str]:
    view, leavers = picture.view, {*picture.other_leavers, *((picture.me,) if picture.leaving else ())}
    assert view is not None
    if picture.only_member:  # there is nobody to hand over to, and what becomes of it the leaver says itself
        return
    for peer in sorted(leavers):
        if stages := [stage for stage in only_here(picture, leavers, now) if peer in view.holders[stage]]:
            yield f"{peer} leaves, and nobody else has {names_of(stages)} yet: lost if {peer} ends before somebody has"


def _at_one_site(picture: Picture) -> Iterable[str]:
    """Where several peers would go together."""
    assert picture.view is not None
    for site, stages in held_by_one_site(picture.view.holders, picture.sites()).items():
        yield f"site {site} alone holds {names_of(stages)}: lost together if that site is cut off"
    if decides := decided_by_one_site(picture.view, picture.sites()):
        site, votes = decides
        yield (
            f"site {site} has {votes} of {len(picture.view.voters)} votes: if it is cut off, the others wait "
            f"{picture.settings.minority_wait_seconds:g} s and go on as a lineage of their own"
        )


def _lost(picture: Picture) -> Iterable[str]:
    """By the step in which it was."""
    history, found = picture.history, defaultdict[int, list[int]](list)
    newest = max(history.validation, default=0)
    told: dict[int, str] = {}
    for (step, stage), rebuild in sorted(history.rebuilds.items()):
        if rebuild.rung not in LOSSY or rebuild.rung is Rung.OMIT:
            continue
        before, after = history.around(rebuild)
        if before is None or newest < step:
            goes_on, figures = rebuild.rung not in COPIED and history.newest_step - step < STEPS_ALARMED, ""
        else:
            now = history.validation[newest]
            goes_on = now > before * (1 + WORSE)
            then = "" if after is None or newest == step else f", {after:.3f} after"
            figures = f"; validation was {before:.3f} before{then}, and is {now:.3f} now"
        if goes_on:
            found[step].append(stage)
            told[step] = figures
    for step in sorted(found, reverse=True)[:1]:
        verb = "was" if len(found[step]) == 1 else "were"
        copied = {history.rebuilds[step, stage].rung for stage in found[step]} <= COPIED
        what = "what had been learnt there since the last copy" if copied else "what had been learnt there"
        yield f"{names_of(found[step])} {verb} lost at step {step}, with {what}{told[step]}"
