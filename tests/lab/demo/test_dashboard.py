"""The dashboard's page in headless Chromium, over a recorded run. Skips, and says so, where there is no Chromium."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.demo.browser import Page
from ftnode.lab.demo.dashboard_replay import Replay, open_replay, read_recording, repeated
from ftnode.lab.parts import dashboard
from ftnode.node.watch import dashboard_feed
from ftnode.node.watch.dashboard_feed import COMMITS_KEPT, Decision, Feed
from ftnode.node.watch.history import CommitRow, ValidationRow
from ftnode.node.watch.status import (
    ConvictedRow,
    DoubtRow,
    RecoveryRow,
    Speaker,
    StageRow,
    SwarmStatus,
    UndoVotesRow,
)
from ftnode.protocol.words.errors import UserError
from tests.lab.audit.miniature import NAMES, PEERS, Miniature
from tests.lab.demo.browsing import in_browser, needs_chromium

EVIL = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return Miniature(tmp_path / "run", now=time.monotonic() + 1).write()


def look(feed: Feed) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(feed.look("", 0, 0, 0), allow_nan=False))
    return found


def test_a_replay_tells_what_happened(recorded: Path) -> None:
    feed = Feed("replay")
    replay = open_replay(recorded, feed)
    replay.tell_until(replay.recording.ended)
    told = look(feed)
    assert replay.over
    assert [row[0] for row in told["commits"]["rows"]] == [1, 2, 3, 4]
    status = told["status"]
    assert (status["step"], status["steps"], status["view"], status["name"]) == (4, 4, 2, "run")
    assert [row["peer"] for row in status["stages"]] == [
        PEERS[name].id for name in ("head", "first", "standby", "last")
    ]
    (recovery,) = status["recoveries"]
    assert (recovery["stage"], recovery["step"], recovery["rung"]) == (2, 3, "blend")
    assert (recovery["lost"], recovery["newcomer"]) == (PEERS["middle"].id, PEERS["standby"].id)
    assert recovery["seconds"] > 0
    assert "view 1: stage 2 lost" in {row[4] for row in told["notes"]["rows"]}


def test_a_replay_goes_through_the_states(recorded: Path) -> None:
    feed = Feed("replay")
    replay = open_replay(recorded, feed)
    seen = set()
    for told in replay.recording.records:
        replay.tell_until(told.time)
        status = look(feed)["status"]
        seen |= {(row["peer"], row["state"]) for row in status["stages"]} if status else set()
    assert {(PEERS["standby"].id, "rebuilding"), (PEERS["standby"].id, "training")} <= seen
    assert {(PEERS[name].id, "training") for name in NAMES} <= seen


def test_a_recording_repeated_goes_on_where_it_ended(recorded: Path) -> None:
    once = read_recording(recorded)
    thrice = repeated(once, 3 * (once.ended - once.began))
    feed = Feed("replay")
    replay = Replay(thrice, feed)
    replay.tell_until(thrice.ended)
    told = look(feed)
    assert [row[0] for row in told["commits"]["rows"]] == list(range(1, 13))
    assert [row["step"] for row in told["status"]["recoveries"]] == [3, 7, 11]
    assert told["status"]["steps"] == 12
    times = [one.time for one in thrice.records]
    assert times == sorted(times)


@pytest.mark.parametrize("text", ["", "nonsense\n", "[]\n", '{"k":"start"}\n'])
def test_what_is_no_trace_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(text)
    with pytest.raises(UserError) as refused:
        read_recording(tmp_path)
    assert refused.value.exit_code in (65, 66)


PROGRAM = """
import sys
from ftnode.node.cli.main import main
code = main(sys.argv[1:])
heavy = {name.split(".")[0] for name in sys.modules} & {"torch", "hivemind", "libp2p"}
assert not heavy, heavy
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "the dashboard is at http://127.0.0.1:0/; Ctrl-C ends it"),
        (("--public",), "the public dashboard is at http://127.0.0.1:0/; anyone can read it: here, and elsewhere "
         "through a reverse proxy of this machine (without one: --listen 0.0.0.0:0); Ctrl-C ends it"),
        (("--public", "--listen", "0.0.0.0:0"),
         "the public dashboard is at http://0.0.0.0:0/; anyone who can reach this machine can read it; Ctrl-C ends it"),
    ],
)  # fmt: skip
def test_a_replay_is_served_and_ends_by_ctrl_c(options: tuple[str, ...], says: str, recorded: Path) -> None:
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "dashboard",
        "--listen",
        "0",
        "--replay",
        str(recorded),
        "--speed",
        "1000",
        *options,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            (port,) = set(re.findall(r":([0-9]+)[/)]", line))
            assert re.sub(r":[0-9]+([/)])", r":0\1", line.strip()) == says and int(port)
            url = line.split(" is at ")[1].split(";")[0]
            step = 0
            while step < 4:
                with urllib.request.urlopen(f"{url}look", timeout=10) as answer:
                    told = json.load(answer)
                assert ("public" in told) == ("--public" in options)
                step = 4 if options else (told["status"] or {"step": 0})["step"]  # a public page is not asked so often
            process.send_signal(signal.SIGINT)
            assert (process.wait(20), process.stderr.read()) == (0, "")
        finally:
            process.kill()


@needs_chromium
def test_the_page_shows_a_recorded_run(recorded: Path) -> None:
    feed = Feed("replay")
    replay = open_replay(recorded, feed)
    replay.tell_until(replay.recording.ended)

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('step').textContent === '4'")
        text = await page.evaluate("document.body.textContent")
        for wanted in (
            "of 4", "Stage 2 at step 3", "from a blend of both neighbours' weights", "1 of 1", "Head", "Stage 3",
            "view 1: stage 2 lost",
        ):  # fmt: skip
            assert wanted in text, wanted
        assert await page.evaluate("document.querySelectorAll('.holder').length") == 4
        assert await page.evaluate("known.loss.length") == 4
        assert await page.evaluate("curve.marks.map((mark) => [mark.step, mark.lost, mark.back])") == [[3, True, True]]
        assert await page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is False
        painted = await page.until(dashboard.PAINTED)
        assert 0 < painted < 20_000

    in_browser(feed, test)


@needs_chromium
def test_a_stage_that_is_not_back_is_lost() -> None:
    feed = Feed("live")
    lost = RecoveryRow(1, 6, "shadow", 3, "12D3KooWlost", "12D3KooWthenew", "a copy of step 5 is kept", None)
    feed.tell_status(SwarmStatus(Speaker("p", "", "", ""), run="r", name="n", step=6, steps=9, recoveries=(lost,)))

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('recovered').textContent === '0 of 1'")
        for name, text in (("outage", "not back yet"), ("standing", "")):
            assert await page.evaluate(f"document.getElementById('{name}').textContent") == text
        assert "oWlost → thenew, from a kept copy" in await page.evaluate("document.body.textContent")

    in_browser(feed, test)


@needs_chromium
def test_pointing_at_a_curve_says_what_was_there() -> None:
    feed = Feed("live")
    feed.tell_status(SwarmStatus(Speaker("p", "", "", ""), run="r", name="n", step=9, steps=9, lineage="l"))
    feed.tell_commits([CommitRow(step, step / 4, 8, 0.5, False) for step in range(1, 10)], "r", "l")
    feed.tell_decisions([Decision(1.0, 4, "p", "lost", "stage 2 is lost")])

    async def point(page: Page, step: float, says: str) -> None:
        """With the pointer at this step of the loss the tip comes to say that."""
        left, top = await page.evaluate(
            "(() => { const over = curve.plot.over.getBoundingClientRect();"
            f"return [over.left + curve.plot.valToPos({step}, 'x'), over.top + over.height / 2]; }})()"
        )
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)
        await page.until(f"!curve.tip.hidden && curve.tip.textContent === {json.dumps(says)}")

    async def test(page: Page, url: str) -> None:
        await page.resize(1280, 900)
        await page.open(url)
        await page.until("curve.plot.data[0].length === 9")
        await point(page, 2.2, "step 2, loss 0.5000")
        await point(page, 5.02, "step 5, loss 1.2500\nstage 2 is lost")
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        await page.until("curve.tip.hidden")

    in_browser(feed, test)


@needs_chromium
def test_a_curve_of_more_steps_than_pixels_keeps_its_range_and_its_mean() -> None:
    feed = Feed("live")
    feed.tell_status(SwarmStatus(Speaker("p", "", "", ""), run="r", name="n", step=6000, steps=9000, lineage="l"))
    feed.tell_commits([CommitRow(step, 2.0 + step % 2, 8, 0.5, False) for step in range(1, 6001)], "r", "l")

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("curve.plot.scales.x.max === 6000 && curve.plot.data[0].length > 100")
        steps, means = await page.evaluate("curve.plot.data.slice()")
        lows, highs = await page.evaluate("curve.bands")
        assert len(steps) < 2000 and steps == sorted(steps) and 1 <= steps[0] < steps[-1] <= 6000
        assert set(lows[1:-1]) == {2.0} and set(highs[1:-1]) == {3.0}
        assert all(2.25 < mean < 2.75 for mean in means[1:-1])
        assert await page.evaluate("[curve.plot.scales.x.min, curve.plot.scales.x.max]") == [1, 6000]

    in_browser(feed, test)


@needs_chromium
def test_what_peers_say_is_text(tmp_path: Path) -> None:
    feed = Feed("live")
    rows = (StageRow(0, EVIL, EVIL, 0, 3, 1, 0, 0.1), StageRow(1, "", EVIL, 0, 0, 0, 0, 0.0))
    feed.tell_status(SwarmStatus(
        Speaker(EVIL, EVIL, EVIL, EVIL), run="r", name=EVIL, step=3, steps=9, loss=2.0, leader=EVIL, lineage="l",
        state=EVIL, waiting=EVIL, stages=rows, standbys=(EVIL,),
        recoveries=(RecoveryRow(1, 2, EVIL, 0, EVIL, EVIL, EVIL, None),),
    ))  # fmt: skip
    feed.tell_decisions([Decision(1.0, 2, EVIL, EVIL, EVIL), Decision(2.0, 2, EVIL, "lost", EVIL)])
    feed.tell_commits([CommitRow(3, 2.0, 8, 0.5, False)], "r", "l")

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('step').textContent === '3'")
        assert await page.evaluate("document.querySelectorAll('img').length") == 1
        assert await page.evaluate("document.querySelectorAll('script').length") == 3
        assert EVIL in await page.evaluate("document.getElementById('log').textContent")
        assert await page.evaluate("document.title.endsWith('ftnode')")

    in_browser(feed, test)


@needs_chromium
def test_the_page_says_who_lied_and_accuses_nobody_of_being_unusual() -> None:
    feed = Feed("live")
    status = SwarmStatus(
        Speaker("a", "", "", ""), run="r", step=3, steps=9, lineage="l", cut_off=2,
        convicted=(ConvictedRow("12D3KooWliar01", 2, f"it gave something else {EVIL}", ("12D3KooWsigner", "b")),),
        doubts=(DoubtRow("12D3KooWodd001", 0, 3, "4.6 times what is usual"),),
        rollback_votes=(UndoVotesRow(1, 2, 3),),
    )  # fmt: skip
    feed.tell_status(status)

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('step').textContent === '3'")
        said = await page.evaluate("document.getElementById('trust').textContent")
        undo, cut_off, lied, odd = said.split("\n")
        assert undo.startswith("2 voters want to roll back to step 1; 3 are an order")
        assert cut_off.startswith("2 parts of sums counted for less")
        assert "liar01 lied in step 2, and is asked for nothing any more: it gave something else" in lied
        assert EVIL in lied and lied.endswith("(signed by signer, b)")
        assert odd == "what odd001 gave to the head in step 3 was 4.6 times what is usual; nobody is accused by that"
        assert await page.evaluate("document.title") != "owned"
        feed.tell_status(replace(status, convicted=(), doubts=(), cut_off=0, rollback_votes=()))
        await page.until("document.getElementById('trust').textContent === ''")

    in_browser(feed, test)


@needs_chromium
def test_the_page_follows_and_says_when_it_cannot(tmp_path: Path) -> None:
    feed = Feed("live")
    status = SwarmStatus(Speaker("p", "", "", ""), run="r", name="tiny", step=1, steps=9, lineage="l", state="training")

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('state').textContent === 'looking'")
        feed.tell_trouble("no peer answered")
        await page.until("!document.getElementById('banner').hidden")
        assert await page.evaluate("document.getElementById('banner').textContent") == "No peer answered"
        feed.tell_status(status)
        await page.until("document.getElementById('banner').hidden")
        feed.tell_commits([CommitRow(1, 2.0, 8, 0.5, False)], "r", "l")
        await page.until("known.loss.length === 1")
        feed.tell_status(replace(status, lineage="another"))
        await page.until(f"known.generation === '{look(feed)['generation']}'")

    in_browser(feed, test)


@needs_chromium
def test_the_page_keeps_what_it_knows_of_a_swarm_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed("live")
    feed.tell_status(SwarmStatus(
        Speaker("p", "", "", ""), run="r", name="tiny", step=1, steps=9, lineage="l", state="training", loss=2.0,
        stages=(StageRow(0, "p", "training", 0, 1, 1, 0, 0.1),),
    ))  # fmt: skip
    feed.tell_commits([CommitRow(1, 2.0, 8, 0.5, False)], "r", "l")
    monkeypatch.setattr(dashboard_feed, "SILENT_SECONDS", -1.0)
    feed.tell_trouble("nobody asked knows the run r")

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('state').textContent === 'silent'")
        assert await page.evaluate("known.loss.length") == 1
        assert await page.evaluate("document.getElementById('step').textContent") == "1"
        assert (await page.evaluate("document.getElementById('source').textContent")).startswith("As of ")
        banner = await page.evaluate("document.getElementById('banner').textContent")
        assert banner.startswith("Nobody has been heard since ") and banner.endswith("nobody asked knows the run r")

    in_browser(feed, test)


@needs_chromium
def test_a_long_run_stays_bounded() -> None:
    feed = Feed("live")
    feed.tell_status(SwarmStatus(Speaker("p", "", "", ""), run="r", name="long", steps=10**6, lineage="l"))
    feed.tell_commits([CommitRow(n, 2.0 + n % 7, 8, 0.5, False) for n in range(1, COMMITS_KEPT + 1)], "r", "l")
    feed.tell_validations([ValidationRow(n, 2.0) for n in range(1, COMMITS_KEPT, 50)])
    feed.tell_decisions(Decision(float(n), n, "p", "lost", f"node {n} is lost") for n in range(2000))

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until(f"known.commits === {COMMITS_KEPT}")
        assert await page.evaluate("known.loss.length <= POINTS_MAX && known.loss.length > POINTS_MAX / 2")
        assert await page.evaluate("known.loss.steps[known.loss.length - 1]") == COMMITS_KEPT
        assert await page.evaluate("known.loss.steps[0]") < 100, "the beginning is there, coarsely"
        in_order = "known.loss.steps.subarray(0, known.loss.length).every((step, i, all) => !i || all[i - 1] < step)"
        assert await page.evaluate(in_order)
        assert await page.evaluate("Math.abs(known.loss.meanOfLast(1e9) - 5) < 0.1")
        assert await page.evaluate("known.said.length <= NOTES_MAX && known.marks.size <= MARKS_MAX")
        assert await page.evaluate("document.querySelectorAll('*').length") < 8000
        assert await page.heap_bytes() < 50e6

    in_browser(feed, test)


@needs_chromium
def test_the_bench_measures(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "PAINTS", 1)
    figures = dashboard.run(recorded, hour=5.0, speed=5.0)
    assert 0 < figures["first_paint_seconds"] <= figures["shown_seconds"]
    assert 0 < figures["heap_after_megabytes"] <= 50
    assert figures["commits"] % 4 == 0
    assert re.search(r"first paint +\d", capsys.readouterr().out)
