"""What a person sees: one line for the run, one per stage, one per peer on request; and how often."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ftnode.node.links.addresses import remembered_peers
from ftnode.node.watch import light_client
from ftnode.node.watch.stage_summary import summarize
from ftnode.node.watch.status import (
    ConvictedRow,
    DoubtRow,
    Member,
    PeerRow,
    RecoveryRow,
    Speaker,
    StageRow,
    SwarmStatus,
    UndigestedRow,
    UndoVotesRow,
    decode_status,
    encode_status,
    to_mapping,
)
from ftnode.node.watch.status_table import others_told, peer_table, plain_lines, render, run_text, wanted_text
from tests.node.cli.cli_runner import runner
from tests.node.directory.signers import signer

ROWS = (
    StageRow(0, "12D3KooWabcdef", "training", 0, 7, 3, 1, 0.5, 1500.0),
    StageRow(1, "12D3KooWghijkl", "training", 1, 7, 3, 2, 0.5, 700.0),
    StageRow(1, "12D3KooWmnopqr", "ready", 1, 7, 3, 2, 0.5, 800.0),
    StageRow(2, "", "vacant", 2, 0, 0, 0, 0.0),
)
FULL = SwarmStatus(
    Speaker("12D3KooWabcdef", "0.1.0", "cpu", "volunteer"), run="abcdef", name="tiny", step=1207, steps=30000, loss=2.5,
    validation=2.4, validation_step=1200, perplexity=11.02, tokens_per_second=1234.0, eta_seconds=7500.0, volunteers=4,
    leader="12D3KooWabcdef", view=3, state="training", stages=ROWS, standbys=("12D3KooWstuvwx",),
    summaries=summarize(ROWS, lambda stage: 100.0 if stage == 2 else 0.25),
    peers=(
        PeerRow(
            "12D3KooWghijkl", "holder", (1,), ("/ip4/192.0.2.7/tcp/1",), "relayed", 0.0213, "0.1.0", 1.5,
            0.124, 0.9, 0.05, 0.93, 2.4e6,
        ),
        PeerRow("12D3KooWstuvwx", "standby", (), (), "none", None, "", None),
    ),
    recoveries=(RecoveryRow(1, 6, "blend", 3, "12D3KooWlost", "12D3KooWnew", "silent", 2.5),),
)  # fmt: skip
ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWA1zbZPC6d35sta3fF8sz7nWseL13tjnKrHpzDjMZeBxk"


def test_parts_of_sums_that_were_cut_off_and_doubts_are_told_in_plain_words() -> None:
    doubts = (DoubtRow("12D3KooWghijkl", 2, 1200, "1,000 times what is usual in its group; 0.1% of it counts"),)
    status = replace(FULL, cut_off=3, doubts=doubts)
    lines = " ".join(plain_lines(status))
    assert "3 parts of sums counted for less than was given" in lines
    assert "gave to stage 2 in step 1,200 was 1,000 times what is usual" in lines and "nobody is accused" in lines
    assert decode_status(encode_status(status)) == status and to_mapping(status)["doubts"][0]["peer"] == doubts[0].peer
    assert "accused" not in " ".join(plain_lines(FULL))


def test_why_somebody_is_doubted_or_was_found_is_told_whole() -> None:
    why = "one that differs from what is usual by so much, in so many places, that it takes a long line to tell; " * 2
    doubt, lie = DoubtRow("12D3KooWghijkl", 2, 1200, why), ConvictedRow("12D3KooWghijkl", 1200, why, ())
    lines = " ".join(plain_lines(replace(FULL, doubts=(doubt,), convicted=(lie,))))
    assert f"was {why}; nobody is accused" in lines and f"any more: {why} (signed by" in lines


def test_who_was_found_to_lie_is_named_with_who_has_signed_it() -> None:
    row = ConvictedRow("12D3KooWghijkl", 1200, "what it passed on is far off", ("12D3KooWabcdef", "12D3KooWmnopqr"))
    status = replace(FULL, convicted=(row,))
    lines = " ".join(plain_lines(status))
    assert "lied in step 1,200, and is asked for nothing any more: what it passed on is far off (signed by " in lines
    assert decode_status(encode_status(status)) == status and to_mapping(status)["convicted"][0]["peer"] == row.peer
    assert "lied" not in " ".join(plain_lines(FULL))


ORDERED = "its author orders to roll back to step 1,100 or an earlier one"
IN_VAIN = f"no disk here has all stages of step 1,100 or of an earlier one{' that somebody kept' * 10}"


@pytest.mark.parametrize(
    ("went_to", "trouble", "told"),
    [
        (None, "", f"{ORDERED}: not done while no disks here have all stages so old"),
        (None, IN_VAIN, f"{ORDERED}, which changes nothing: {IN_VAIN}"),
        (1000, "", "rolled back by its author's order: to the snapshots of step 1,000 (step 1,100 was ordered)"),
    ],
)
def test_what_became_of_an_order_to_roll_back_is_told_whole_and_once(
    went_to: int | None, trouble: str, told: str
) -> None:
    status = replace(FULL, rollback_ordered=1100, rollback_went_to=went_to, rollback_trouble=trouble)
    assert told in plain_lines(status)


def test_what_voters_want_and_order_is_told() -> None:
    wanted = replace(FULL, rollback_votes=(UndoVotesRow(900, 1, 3), UndoVotesRow(1100, 2, 3)))
    how = "3 are an order: ftnode run rollback MANIFEST --by-members --to-step"
    one, more = "1 voter wants to roll back to step 900", "2 voters want to roll back to step 1,100"
    assert {f"{one}; {how} 900", f"{more}; {how} 1100"} <= {*plain_lines(wanted)}
    assert decode_status(encode_status(wanted)) == wanted
    ordered = replace(FULL, rollback_ordered=1100, rollback_by="members", rollback_number=1)
    assert any(line.startswith("most of its voters order to roll back to step 1,100") for line in plain_lines(ordered))
    lines = plain_lines(replace(ordered, rollback_went_to=1000))
    assert "rolled back by most voters' order: to the snapshots of step 1,000 (step 1,100 was ordered)" in lines


def test_a_recovery_is_told_whole() -> None:
    why = "stage 1 is an end of the pipeline: its one block neighbour takes its place; " * 3
    rows = (
        RecoveryRow(1, 6, "copy", 3, "12D3KooWlost", "12D3KooWnew", why, 2.5, 2_100_000),
        RecoveryRow(2, 7, "blend", 4, "", "12D3KooWnew", "silent", None),
        RecoveryRow(3, 5, "blend", -1, "", "", "told with the commit", 3.2, 0, None, 2.5),
        RecoveryRow(1, 9, "shadow", -1, "", "", "told with the commit", 3.2, 0, 2.4, 2.5),
    )
    assert plain_lines(replace(FULL, recoveries=rows))[-4:] == [
        "stage 1 was lost with oWlost at step 6; ooWnew rebuilt it from a neighbour's weights in 2.5 s, 2.1 MB "
        f"({why})",
        "stage 2 was lost at step 7; ooWnew rebuilds it from a blend of both neighbours' weights (silent)",
        "stage 3 was lost at step 5; a volunteer rebuilt it from a blend of both neighbours' weights in 3.2 s; "
        "validation after 2.500",
        "stage 1 was lost at step 9; a volunteer rebuilt it from a kept copy in 3.2 s; validation before 2.400, after "
        "2.500",
    ]


def test_who_looks_for_a_run_says_nothing_of_a_leader() -> None:
    found = SwarmStatus(FULL.speaker, run="abcdef", name="tiny", steps=30000, state="waiting", waiting="an answer")
    assert plain_lines(found)[1:] == ["step 0 of 30,000, waiting", "waiting for an answer"]


def test_what_a_run_waits_for_is_told_whole() -> None:
    """Also where several stages are missing when a swarm starts again."""
    sight = "the disks here make step 1,100 possible, where stages 2, 5 and 7 would be rebuilt; step 1,100 is known"
    wait = f"others who were there, 120 s at most: {sight}"
    assert plain_lines(replace(FULL, waiting=wait)).count(f"waiting for {wait}") == 1


def test_one_line_for_the_run() -> None:
    assert plain_lines(FULL)[1] == (
        "step 1,207 of 30,000, loss 2.5000, validation 2.4000 at step 1200 (perplexity 11.02), tokens/s 1,234, "
        "4 volunteers, 2 h 5 min to go, training"
    )


def test_one_row_per_stage() -> None:
    table = [line.split() for line in plain_lines(FULL)[4:7]]
    assert table[0] == ["head", "1", "0", "training", "7", "1,500", "1", "0.2", "s", "ago"]
    assert table[1] == ["1", "2", "1", "training", "7", "1,500", "4", "0.2", "s", "ago"]
    assert table[2] == ["2", "0", "2", "vacant", "2", "min", "ago", "nobody", "holds", "it"]
    assert plain_lines(FULL)[-2:] == [
        "1 stage was lost and rebuilt so far",
        "stage 1 was lost with oWlost at step 6; ooWnew rebuilt it from a blend of both neighbours' weights in 2.5 s "
        "(silent)",
    ]


def test_one_row_per_peer_on_request() -> None:
    lines = plain_lines(FULL, per_peer=True)
    assert any(
        line.split()[:9] == ["ghijkl", "holder", "1", "relayed", "21.3", "ms", "0.1.0", "1.5", "s"] for line in lines
    )
    assert any(line.split() == ["stuvwx", "standby", "-", "none", *["-"] * 8] for line in lines)
    assert any(line.split() == ["2", "nobody", "vacant"] for line in lines)
    assert not any("relayed" in line for line in plain_lines(FULL))


def test_what_each_peer_does_with_its_time_and_whom_the_run_waits_for() -> None:
    limited = replace(FULL, limiting_peer="12D3KooWghijkl", limited_by="line")
    lines = plain_lines(limited, per_peer=True)
    assert any(line.split()[-6:] == ["12%", "90%", "5%", "93%", "19.2", "Mbit/s"] for line in lines)
    says = "the line of ghijkl limits the run; it gives 19.2 Mbit/s up and was full for 93% of the last minute"
    assert says in lines and says not in plain_lines(FULL, per_peer=True)
    busy = plain_lines(replace(limited, limited_by="device"), per_peer=True)
    assert "the device of ghijkl limits the run; it computed for 12% of the last minute" in busy


def test_a_node_that_sends_no_summaries_is_shown_too() -> None:
    old = replace(FULL, summaries=(), peers=(), volunteers=0, waiting="a volunteer for stage 2")
    lines = plain_lines(old, per_peer=True)
    assert "4 volunteers" in lines[1]
    assert any(line.endswith("waits for a volunteer for stage 2") and "vacant" in line for line in lines)


def test_what_the_speaker_lacks_is_told_though_the_run_goes_on() -> None:
    lines = plain_lines(replace(FULL, trouble="its directory to be back (it died)"))
    assert any(line.endswith("who says this, waits for its directory to be back (it died)") for line in lines)
    assert not any("who says this" in line for line in plain_lines(FULL))


def test_what_the_speaker_could_not_digest_is_counted_with_the_newest_place() -> None:
    told = "could not digest 3 messages of peers; the newest on /ftnode/step/3 at links/inbound.py:88 (KeyError): "
    newest = UndigestedRow("/ftnode/step/3", "links/inbound.py:88 (KeyError)", 2)
    rows = (newest, UndigestedRow("/ftnode/who/1", "watch/peer_latency.py:9 (TypeError)", 1))
    assert any(told in line for line in plain_lines(replace(FULL, undigested=rows)))
    assert not any("digest" in line for line in plain_lines(FULL))


@pytest.mark.parametrize("per_peer", [False, True])
def test_a_terminal_shows_the_same_lines(per_peer: bool) -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(render(FULL, per_peer))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == plain_lines(FULL, per_peer)
    red = io.StringIO()
    Console(file=red, width=200, force_terminal=True, color_system="standard").print(render(FULL))
    assert [line for line in red.getvalue().splitlines() if "\x1b[1;31m" in line and "vacant" in line]


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_terminal_cuts_no_reason(columns: int) -> None:
    reason = "can no longer be had: no word from ghijkl for 31 s"
    told = replace(FULL, summaries=(*FULL.summaries[:2], replace(FULL.summaries[2], reason=reason)))
    out = io.StringIO()
    Console(file=out, width=columns).print(render(told))
    lines = out.getvalue().splitlines()
    assert f"stage 2: {reason}" in " ".join(" ".join(lines).split()), "below the table, wrapped"
    assert max(map(len, lines)) <= columns and not any(line.startswith("stage 1: ") for line in lines)
    assert [line for line in lines if line.startswith("2") and "vacant" in line], "the rest stays where it was"


def test_members_that_a_meeting_point_knows_are_peers() -> None:
    point = SwarmStatus(FULL.speaker, members=(Member("run", "tiny", "12D3KooWother", ("/ip4/192.0.2.7/tcp/1",)),))
    assert [row[0] for row in peer_table(point).rows] == ["12D3KooWother"]
    assert plain_lines(point)[1:] == ["it knows 1 volunteer of tiny (run)"]


@pytest.mark.parametrize(
    ("arguments", "interval"), [(["--watch"], 2.0), (["--watch", "7"], 7.0), (["--watch", "--peer", ADDRESS], 2.0)]
)
def test_watching_needs_no_number(
    arguments: list[str], interval: float, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[float] = []

    def look(
        addresses: tuple[str, ...],
        every: float,
        timeout: float,
        show: Callable[[SwarmStatus], None],
        run: str,
        complete: object,
    ) -> None:
        asked.append(every)
        show(FULL)

    monkeypatch.setattr(light_client, "watch", look)
    seen = runner(capsys)(
        "status", *arguments, "--home", tmp_path, *([] if "--peer" in arguments else ["--peer", ADDRESS])
    )
    assert seen.code == 0 and "step 1,207" in seen.out and asked == [interval]


def test_peers_as_a_table_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light_client, "fetch_answer", lambda addresses, timeout, run: (FULL, (ADDRESS,)))
    run: Any = runner(capsys)
    silent = f"/ip4/192.0.2.9/tcp/9/p2p/{signer(1).peer.id}"
    seen = run("peers", "--peer", ADDRESS, "--peer", silent, "--home", tmp_path)
    assert remembered_peers(tmp_path) == (ADDRESS,), "only who answered"
    assert "12D3KooWghijkl" in seen.out and "/ip4/192.0.2.7/tcp/1" in seen.out and "relayed" in seen.out
    found = json.loads(run("peers", "--peer", ADDRESS, "--json", "--home", tmp_path).out)
    assert found["peers"] == json.loads(json.dumps(to_mapping(FULL)["peers"])) and found["format"] == 1


def test_runs_that_others_know_are_told_in_one_line() -> None:
    """A meeting point may name thousands, of any name."""
    many = [Member(f"{number:032x}", f"run{number:02}\n", "peer", ()) for number in range(30)]
    told = others_told(
        [SwarmStatus(Speaker("", "", "", ""), members=tuple(many)), SwarmStatus(Speaker("", "", "", ""))]
    )
    assert told.startswith("run00? (000000000000), run01? (000000000000), ") and told.endswith(", 22 more")
    assert run_text("ab" * 16, "") == "a run (abababababab)" and len(run_text("ab" * 16, "x" * 500)) < 100
    assert (wanted_text("ab" * 16), wanted_text("x" * 33)) == ("abababababab", "x" * 33)


def test_strangers_do_not_steer_our_terminal() -> None:
    evil = "\x1b[2J[red]\nforged words"
    bad = replace(
        FULL,
        summaries=(replace(FULL.summaries[0], state=evil, reason=evil),),
        peers=(PeerRow(evil, evil, (1,), (evil,), evil, 0.1, evil, 1.0),),
    )
    for text in ("\n".join(plain_lines(bad, True)), "\n".join(peer_table(bad).lines())):
        assert "\x1b" not in text and "\nforged" not in text and "[red]" in text
