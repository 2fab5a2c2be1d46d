"""What the core shows between two events: it is of one moment, and who looks changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from ftnode.protocol import participant, picture
from ftnode.protocol.liveness.liveness import SignsShown
from ftnode.protocol.participant import Participant
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.effects import Effect, PublishView
from ftnode.protocol.words.events import Event
from ftnode.protocol.words.view import View
from tests.sim.digest import Recorder, stored
from tests.sim.planted import patched
from tests.sim.scenario import run_seed

SEEDS = (5, 17, 44)
KEPT_EVERY = 20


def copied(shown: Picture) -> dict[str, object]:
    """All that it shows, but the history, which goes on."""

    def copy(value: object) -> object:
        if isinstance(value, SignsShown):
            return [copy(getattr(value, field.name)) for field in fields(value)]
        return dict(value) if isinstance(value, Mapping) else value

    return {name: copy(value) for name, value in shown._asdict().items() if name != "history"}


class Onlookers:
    """They look at every participant after every event, and keep some of the pictures until after the next one."""

    def __init__(self) -> None:
        self.looks = 0
        self.changed: set[str] = set()
        """What a picture showed that did not stay as it was."""
        self.unpublished = 0
        """Changes of view that no effect told of."""
        self._kept: dict[int, tuple[Picture, dict[str, object]]] = {}
        self._views: dict[int, object] = {}

    def look(self, core: Participant, effects: list[Effect]) -> None:
        self.looks += 1
        shown, key = core.picture, id(core)
        assert core.picture is shown, "it is made once for each event"
        if key in self._kept:
            kept, was = self._kept.pop(key)
            self.changed.update(name for name, value in copied(kept).items() if value != was[name])
        if self.looks % KEPT_EVERY == 0:
            self._kept[key] = shown, copied(shown)
        told = any(isinstance(effect, PublishView) for effect in effects)
        self.unpublished += shown.view is not self._views.get(key) and not told
        self._views[key] = shown.view


@contextmanager
def looked_at() -> Iterator[Onlookers]:
    onlookers, handle = Onlookers(), Participant.handle

    def watched(core: Participant, event: Event, now: float) -> list[Effect]:
        effects = handle(core, event, now)
        onlookers.look(core, effects)
        return effects

    with patched((Participant, "handle", watched)):
        yield onlookers


@pytest.mark.parametrize("seed", SEEDS)
def test_who_looks_changes_nothing_and_what_is_shown_stays_as_it_was(seed: int) -> None:
    recorder = Recorder()
    with looked_at() as onlookers:
        recorder.run(partial(run_seed, seed))
    assert (onlookers.changed, onlookers.unpublished) == (set(), 0) and onlookers.looks > 1000
    assert recorder.exact.hexdigest() == stored()[f"seed {seed}"][0]


def test_planted_tables_that_are_not_copied_change() -> None:
    with looked_at() as onlookers, patched((picture, "as_it_is", MappingProxyType)):
        run_seed(SEEDS[0])
    assert {"contacts", "versions"} <= onlookers.changed


def test_a_planted_change_of_view_that_no_effect_tells_of_is_found() -> None:
    install = Participant.install

    def quietly(core: Participant, view: View) -> None:
        install(core, view)
        core._out[:] = [effect for effect in core._out if not isinstance(effect, PublishView)]

    with looked_at() as onlookers, patched((Participant, "install", quietly)):
        run_seed(SEEDS[0])
    assert onlookers.unpublished


def test_nobody_looks_and_nothing_is_made() -> None:
    made = []

    def picture_of(*arguments: Any, **named: Any) -> None:
        made.append(arguments)

    with patched((participant, "picture_of", picture_of)):
        run_seed(SEEDS[0])
    assert made == []
