"""A disk that takes no note: the node goes on, says so once, and hands over all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from ftnode.node.home.identity import BOOTSTRAP_NAME, take_identity
from ftnode.node.owner.join_options import RUNNING_FOLDER, Running, forget_running, note_running, running_nodes
from ftnode.node.owner.running_note import RunningNote, others_beside
from tests.node.life.departing import Life, run

NODE = Running(os.getpid(), "me", "run", ())


def block(home: Path) -> Path:
    """A folder where the draft of the note would be written; its path."""
    draft = home / RUNNING_FOLDER / f".me.json.{os.getpid()}"
    draft.mkdir(parents=True)
    return draft


def test_it_goes_on_and_says_so_once(tmp_path: Path) -> None:
    said: list[str] = []
    note = RunningNote(tmp_path, lambda kind, text: said.append(f"{kind}: {text}"))
    draft = block(tmp_path)
    note.write(NODE)
    note.write(NODE)
    assert len(said) == 1 and "cannot write" in said[0] and str(tmp_path) in said[0]
    draft.rmdir()
    note.write(NODE)
    assert [node.peer for node in running_nodes(tmp_path)] == ["me"] and len(said) == 1
    block(tmp_path)
    note.write(NODE)
    assert len(said) == 2


def test_what_could_not_be_written_is_tried_again(tmp_path: Path) -> None:
    note = RunningNote(tmp_path, lambda kind, text: None)
    draft = block(tmp_path)
    note.write(NODE)

    async def scenario() -> None:
        with trio.move_on_after(25):
            await note.keep()
        assert running_nodes(tmp_path) == ()
        draft.rmdir()
        with trio.move_on_after(15):
            await note.keep()
        assert [node.peer for node in running_nodes(tmp_path)] == ["me"]

    run(scenario)


def test_a_draft_that_cannot_take_its_place_is_removed(tmp_path: Path) -> None:
    (tmp_path / RUNNING_FOLDER / "me.json").mkdir(parents=True)
    with pytest.raises(OSError):
        note_running(tmp_path, NODE)
    assert [path.name for path in (tmp_path / RUNNING_FOLDER).iterdir()] == ["me.json"]
    forget_running(tmp_path, "me")


def test_the_swarm_hears_that_it_goes_before_the_disk_does() -> None:
    heard: list[list[str]] = []

    async def scenario() -> None:
        leaving = Life(note=lambda: heard.append(list(leaving.left)))
        leaving.departure.leave("Ctrl-C")
        pausing = Life(note=lambda: heard.append(list(pausing.left)))
        with trio.move_on_after(1):
            await pausing.departure.pause("a game", False, 60.0)

    run(scenario)
    assert heard == [["Ctrl-C"], ["pauses, a game"]]


def test_who_starts_a_second_volunteer_in_a_home_is_told_of_the_first(tmp_path: Path) -> None:
    """Not of a meeting point, and not of one that has ended, whose number another process has now."""
    first, second, point = take_identity(tmp_path), take_identity(tmp_path), take_identity(tmp_path, BOOTSTRAP_NAME)
    try:
        note_running(tmp_path, Running(os.getpid(), point.peer_id, "", ()))
        note_running(tmp_path, Running(os.getpid(), second.peer_id, "run", ()))
        assert others_beside(tmp_path, second.peer_id) == ""
        note_running(tmp_path, Running(os.getpid(), first.peer_id, "run", ()))
        told = others_beside(tmp_path, second.peer_id)
        assert told.startswith(f"another volunteer of this home runs, {first.peer_id} (process {os.getpid()}); this is")
        assert "2 other volunteers of this home run, " in others_beside(tmp_path, "third")
    finally:
        for identity in (first, second, point):
            identity.release()
    assert others_beside(tmp_path, "third") == ""
