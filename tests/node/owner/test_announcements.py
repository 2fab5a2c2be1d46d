"""What a node tells its owner reaches any terminal, and steers none."""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stdout
from pathlib import Path

from ftnode.node.owner.announcements import (
    NUMBERS,
    PLAIN_KINDS,
    STAGES,
    Speaking,
    activations_at_once,
    capacity_of,
    describe_compute,
    head_fits,
    live_here,
    room_on,
)
from ftnode.node.watch.own_work import OwnWork
from ftnode.protocol.words.effects import Note

EVIL = "\x1b[2J\x1b]0;owned\x07refused\r\n\x9bforged \u202eline"


def said(as_json: bool, *notes: Note) -> list[str]:
    """What a terminal that knows ASCII alone shows."""
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with redirect_stdout(terminal):
        speaking = Speaking(as_json)
        for note in notes:
            speaking.note(note)
    terminal.seek(0)
    return terminal.read().splitlines()


def test_words_of_strangers_do_not_steer_the_terminal() -> None:
    lines = said(False, Note("refused", EVIL, ()), Note("directory", EVIL, ()))
    assert len(lines) == 2
    assert all(line.isprintable() and "forged" in line for line in lines)


def test_a_terminal_that_knows_ascii_alone_is_no_error() -> None:
    assert said(False, Note("rebuilt", "stage 2 \u2192 \u03c9", ()))[0].endswith("stage 2 ? ?")


def test_people_read_plain_words_for_kinds() -> None:
    """Programs read the kinds themselves. Every word fits its column."""
    notes = (Note("stand", "the next step begins", ()), Note("announcement", "the run's author says: hello", ()))
    shown = [line[10:] for line in said(False, *notes)]
    assert shown == ["step       the next step begins", "author     the run's author says: hello"]
    assert max(map(len, PLAIN_KINDS.values())) <= 10
    assert [json.loads(line)["kind"] for line in said(True, *notes)] == ["stand", "announcement"]


def test_a_stage_that_is_learnt_is_told_of_once_until_the_holders_are_others() -> None:
    def here(step: int, stage: str = "1", rung: str = "replica") -> Note:
        return Note("rebuilt", f"stage {stage} is here as of step {step}", (("stages", stage), ("rung", rung)))

    notes = (here(6), here(7), here(9), here(9, "2"), here(9, rung="blend"), Note("view", "all others", ()), here(21))
    shown = [line.split()[-1] for line in said(False, *notes)]
    assert shown == ["6", "9", "9", "others", "21"]
    assert len(said(True, *notes)) == len(notes), "programs read all of them"


def test_json_is_one_object_a_line() -> None:
    (line,) = said(True, Note("refused", EVIL, (("peer", EVIL),)))
    assert "\x1b" not in line and json.loads(line)["peer"] == EVIL


def test_numbers_are_numbers_in_json() -> None:
    work = OwnWork(visits=12, steps=3, held_seconds=8.4, stages={0, 2}, share=0.25)
    fields = (("peer", "123"), ("stages", "1, 2"), ("step", "7"), ("base", "-1"))
    terminal = io.StringIO()
    with redirect_stdout(terminal):
        speaking = Speaking(True)
        speaking.note(Note("lost", "two stages", fields))
        speaking.note(Note("lost", "no stage", (("stages", ""),)))
        speaking.say("offer", "room for 2 of 3", stages=2, of=3, step_seconds=0.125, limited_by="memory")
        speaking.say("summary", "some work", **work.fields())
        speaking.say("summary", "no work", **OwnWork().fields())
    lost, nothing, offer, some, none = map(json.loads, terminal.getvalue().splitlines())
    assert (lost["peer"], lost["stages"], lost["step"], lost["base"]) == ("123", [1, 2], 7, -1)
    assert nothing["stages"] == []
    assert (offer["stages"], offer["of"], offer["step_seconds"]) == (2, 3, 0.125)
    assert (some["visits"], some["steps"], some["held_seconds"], some["stages"]) == (12, 3, 8, [0, 2])
    assert (some["share"], some["recoveries"], none["share"]) == (0.25, 0, None)


def test_every_number_that_the_core_tells_is_known_as_one() -> None:
    told = {
        word.arg
        for path in (Path(__file__).parents[3] / "protocol").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "note"
        for word in call.keywords
        if isinstance(word.value, ast.Call) and isinstance(word.value.func, ast.Name) and word.value.func.id == "str"
    }
    assert "step" in told and told <= {*NUMBERS, STAGES}


def test_copies_of_others_stages_count_when_stages_are_claimed() -> None:
    """Two stages of 400 bytes fit into 1000; with 120 for each one's shadows and 30 for the head's copies, one does."""
    ready = {"stage_bytes": 200, "activation_bytes": 25, "memory_free": 1000, "tokens_per_second": 1.0, "threads": 1,
             "device": "cpu", "precision": "float32", "head_bytes": 300, "head_working_bytes": 50}  # fmt: skip
    assert capacity_of(ready, 8, 8) == 2
    assert capacity_of(ready, 8, 8, (100, 0)) == 2 and capacity_of(ready, 8, 8, (100, 1)) == 1
    assert capacity_of(ready, 8, 8, (120, 30)) == 1
    assert capacity_of(ready, 8, 8, (0, 700)) == 0
    assert capacity_of(ready, 8, 8, head=True) == 1 and head_fits(ready, 8, (120, 130)) == (True, "")
    assert not head_fits(ready, 8, (120, 131))[0]
    assert capacity_of(ready | {"stage_bytes": 0, "activation_bytes": 0}, 8, 8, (120, 30)) == 8  # paced: no model
    told = describe_compute([ready], 8, (2 << 20, 1 << 20), True, "")
    assert told[1] == "copies of others' stages take at most 3.0 MiB with one stage held"
    compiled = describe_compute([ready | {"compiled": True, "not_compiled": ""}], 8, (0, 0), True, "")
    assert "float32, compiled blocks; a stage" in compiled[0] and "compiled" not in told[0]
    without = describe_compute([ready | {"compiled": False, "not_compiled": "no cc"}], 8, (0, 0), True, "")
    assert without[1] == "blocks are not compiled: no cc"


def test_activations_that_do_not_fit_are_computed_again() -> None:
    """A stage of 200 bytes and its activations of 25; the one that is computed again takes memory, too."""

    def kept(*free: int, each: int = 8) -> tuple[int, int]:
        devices = [{"stage_bytes": 200, "activation_bytes": 25, "memory_free": one} for one in free]
        at_once = activations_at_once(devices, each, (0, 0))
        return at_once, live_here(at_once, each)

    assert kept(400) == (8, -1) and kept(1000) == (8, -1)
    assert kept(399) == (7, 6) and kept(250) == (2, 1) and kept(225) == (1, 0)
    assert kept(224) == (8, -1), "no stage fits, whatever is computed again"
    assert kept(400, 260) == (2, 1) and kept(400, 100) == (8, -1)


def test_the_head_comes_where_it_takes_the_least_room() -> None:
    """Of stages of 100 bytes and a head of 150: as many blocks fit, or one less beside the head."""

    def device(free: int) -> dict[str, int]:
        return {"stage_bytes": 100, "activation_bytes": 0, "memory_free": free, "head_bytes": 150,
                "head_working_bytes": 0}  # fmt: skip

    def on(*free: int, hold: int = 9, head: bool = True) -> tuple[tuple[int, ...], int | None, str]:
        return room_on([device(each) for each in free], hold, 1, (0, 0), head)

    assert on(250) == ((2,), 0, "") and on(350) == ((3,), 0, "") and on(300, head=False) == ((3,), None, "")
    assert on(300) == ((2,), 0, "")
    assert on(450, hold=2) == ((2,), 0, "")
    assert on(100, 260) == ((1, 2), 1, "") and on(300, 350) == ((3, 3), 1, "")
    assert on(240, 100) == ((2, 1), None, "the head and one stage need 0 MiB, and 0 MiB are free")
