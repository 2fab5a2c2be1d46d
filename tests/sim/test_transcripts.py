"""Schedules that broke earlier drafts (docs/explanation/protocol.md, section 9), played to the real core.

A transcript is a script, a line of dashes, and what happened. With FTNODE_UPDATE=1 in the environment that part is
written anew; read the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.script import Play

FOLDER = Path(__file__).parent / "transcripts"
RULE = "-" * 40 + "\n"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_what_happened_then_happens_now(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    script, _, recorded = path.read_text().partition(RULE)
    play = Play(script)
    story = play.perform()
    meaning = MEANINGS.get(name.split("-")[0])
    if meaning is not None:
        meaning(play)
    if os.environ.get("FTNODE_UPDATE"):
        path.write_text(script + RULE + story)
    else:
        assert story == recorded


def rungs(play: Play) -> list[str]:
    """How stages were filled after the first commit."""
    return [line.split(": ")[1].split(" ")[0] for line in play.story if " has stage " in line and "initial" not in line]


def one_lineage_is_left(play: Play) -> None:
    """The cut-off side may found a lineage; in the end all follow the one that had the quorum."""
    play.world.run(play.world.now + 60)
    assert {host.view.lineage.id for host in play.world.live() if host.view} == {next(iter(play.lineages))}


def one_attempt_is_kept(play: Play) -> None:
    """The successor of a dead leader commits what the dead one committed, and does not redo it."""
    assert not any("(skipped)" in line for line in play.story)
    assert rungs(play), "somebody must have taken the dead leader's place"


def redone_whole(play: Play) -> None:
    """A sole holder that dies before its Ready costs the step: its number is committed in a later view."""
    assert any("commits step 5 as attempt" in line for line in play.story)
    assert rungs(play) == ["blend"]


def nothing_is_lost(play: Play) -> None:
    """Broken streams cost no holder anything."""
    assert rungs(play) == []


def back_as_a_standby(play: Play) -> None:
    """Who slept past its lease has no stage when it wakes, and knows the view."""
    assert rungs(play) == ["blend"]
    sleeper = next(host for host in play.world.hosts if host.cause == "pause")
    play.world.run(play.world.now + 30)
    assert sleeper.view is not None and sleeper.alive and not sleeper.paused
    assert sleeper.view.number == max(view.number for view in play.world.ledger.views.values())


def one_end_pays(play: Play) -> None:
    """A link that stays broken between two living members costs one of them its stages, and no more."""
    assert len(rungs(play)) == 1


def skipped_once(play: Play) -> None:
    """A poisoned step is tried twice and then skipped."""
    assert next(line.split(" commits ")[1] for line in play.story if "(skipped)" in line).startswith("step 5 ")
    assert sum("(skipped)" in line for line in play.story) == 1


def nobody_twice(play: Play) -> None:
    """Whoever ran out of memory on the stage does not hold it again, and after the third loss the step is skipped."""
    skipped = [line.split(" commits ")[1] for line in play.story if "(skipped)" in line]
    assert len(skipped) == 1 and skipped[0].startswith("step 4 ")
    struck = [line.split("*** ")[1].split()[0] for line in play.story if "is out of memory" in line]
    assert len(struck) == 3 and len(set(struck)) == 3
    last = max(play.world.ledger.views.values(), key=lambda view: view.number)
    assert str(last.holders[2][0]) not in struck


def initial_once(play: Play) -> None:
    """Founders that meet before step 1 end up as one swarm in which each stage is held once."""
    views = [host.view for host in play.world.live() if host.view is not None]
    assert len({view.lineage.id for view in views}) == 1
    assert all(len(group) == 1 for group in max(views, key=lambda view: view.number).holders)


def goes_on_alone(play: Play) -> None:
    """The survivor founds a lineage and goes on with what it has."""
    assert len(play.lineages) == 2


def head_is_as_it_was(play: Play) -> None:
    """The head comes back from a copy, and the run is completed."""
    assert rungs(play) == ["head"]


def between_the_survivors(play: Play) -> None:
    """Adjacent stages are filled from the nearest on both sides."""
    assert rungs(play) == ["interpolate", "interpolate"]


def begun_again(play: Play) -> None:
    """A newcomer that dies in its own recovery costs a new view, whose epoch nobody had."""
    assert rungs(play) == ["blend"], "the first newcomer never had its weights"
    epochs = [(view.lineage.id, view.epochs[2], view.holders[2]) for view in play.world.ledger.views.values()]
    owners: dict[tuple[str, int], set[object]] = {}
    for lineage, epoch, group in epochs:
        if group:
            owners.setdefault((lineage, epoch), set()).add(group)
    assert all(len(groups) == 1 for groups in owners.values())


def shadows_before_blends(play: Play) -> None:
    """Both of two neighbours come back from the peers that keep their shadows."""
    assert rungs(play) == ["shadow", "shadow"]


def partner_takes_its_place(play: Play) -> None:
    """With swapped routes an end is copied from the stage that learned its part."""
    assert rungs(play) == ["copy"]


def one_is_left(play: Play) -> None:
    """Of the block stages one survives, and the others come from it."""
    assert sorted(rungs(play)) == ["copy", "copy", "copy"]


MEANINGS: dict[str, Callable[[Play], None]] = {
    "01": one_lineage_is_left,
    "03": redone_whole,
    "04": one_attempt_is_kept,
    "05": nothing_is_lost,
    "06": back_as_a_standby,
    "08": one_end_pays,
    "09b": skipped_once,
    "09c": nobody_twice,
    "11": nothing_is_lost,
    "12": initial_once,
    "13": goes_on_alone,
    "14": head_is_as_it_was,
    "15": between_the_survivors,
    "16": begun_again,
    "17": shadows_before_blends,
    "18": partner_takes_its_place,
    "19": one_is_left,
}
