"""Every number that a stranger can send and that becomes an index, a bound or a sum, out of its range: a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.recovery.standing import summarise
from ftnode.protocol.wire.admission import ADDRESSES_MAX, GROUP_MAX, objection, sensible_presence
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.site import SITE_MAX
from ftnode.protocol.words.types import (
    CREDITED_MAX,
    RELAYS_TOLD_MAX,
    Attempt,
    Copied,
    Credit,
    Direction,
    Given,
    LentCopy,
    Peer,
    Rung,
    Snapshot,
    Version,
)
from tests.protocol.wire.test_admission import PEERS, SETTINGS, STRANGER, VIEW, participant

STEPS, STAGES, HUGE = SETTINGS.steps, SETTINGS.stage_count, 2**64 - 1
BASE = Version(5, "base", Attempt(3, 1))
PRESENCE = Presence(
    STRANGER, ("/ip4/127.0.0.1/tcp/1",), "line", 0, 1, True, (1,), ((2, BASE), (2, replace(BASE, step=6))),
    ((0, BASE), (3, BASE)), 9.0, (Snapshot(1, BASE, "d", 0),),
)  # fmt: skip
ODD_STAGES = (-1, STAGES, 999, HUGE)
ODD_VERSIONS = (
    replace(BASE, step=-1), replace(BASE, step=STEPS + 1), replace(BASE, step=HUGE), replace(BASE, commit="x" * 4000),
    replace(BASE, attempt=Attempt(-2, 0)), replace(BASE, attempt=Attempt(0, -1)),
    replace(BASE, attempt=Attempt(HUGE, 0)),
)  # fmt: skip


def variants(name: str, values: Any) -> list[tuple[str, Any]]:
    return [(name, value) for value in values]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *variants("view", (-2, HUGE)),
        *variants("capacity", (-1, HUGE)),
        *variants("tokens_per_second", (-1.0, float("nan"))),
        *variants("lineage", ("x" * 4000,)),
        *variants("refuses", [(stage,) for stage in ODD_STAGES] + [(1, 1), tuple(range(4000))]),
        *variants("copies", [((stage, BASE),) for stage in ODD_STAGES]),
        *variants("copies", [((0, version),) for version in ODD_VERSIONS]),
        *variants("copies", [((1, BASE), (1, replace(BASE, step=4))), ((1, BASE),) * 4000]),
        *variants("exact", [((stage, BASE),) for stage in ODD_STAGES]),
        *variants("exact", [((0, version),) for version in ODD_VERSIONS]),
        *variants("exact", [((1, BASE),) * (3 * STAGES + 1)]),
        *variants("snapshots", [(Snapshot(stage, BASE, "d", 0),) for stage in ODD_STAGES]),
        *variants("snapshots", [(Snapshot(0, version, "d", 0),) for version in ODD_VERSIONS]),
        *variants("snapshots", [(Snapshot(0, BASE, "d", -1),), (Snapshot(0, BASE, "", 0),), PRESENCE.snapshots * 65]),
    ],
)
def test_a_presence_out_of_range_is_left_out(field: str, value: Any) -> None:
    odd = replace(PRESENCE, **{field: value})
    assert sensible_presence(PRESENCE, SETTINGS) and not sensible_presence(odd, SETTINGS)
    core = participant(PEERS[0])
    honest = replace(PRESENCE, peer=Peer("y", 1))
    seen = [core.handle(ev.Directory((odd, honest), ()), 1.0 + n) for n in range(3)]
    assert (
        odd.peer not in core.peers.presences
        and odd.peer not in core.peers.contacts
        and honest.peer in core.peers.presences
    )
    notes = [effect for effects in seen for effect in effects if isinstance(effect, Note) and effect.kind == "nonsense"]
    assert len(notes) == 1


def test_what_honest_peers_announce_is_let_in() -> None:
    for peer in (PEERS[0], PEERS[1], PEERS[4]):
        assert sensible_presence(participant(peer).presence(), SETTINGS)


@pytest.mark.parametrize("view", [replace(VIEW, epochs=()), replace(VIEW, voters=()), replace(VIEW, holders=((),))])
def test_a_certificate_out_of_range_in_the_directory_is_left_out(view: Any) -> None:
    core = participant(PEERS[4])
    core.handle(ev.Directory((), (replace(view, number=9),)), 1.0)
    assert core.view == VIEW


REPORT = ms.StageReport(1, "training", 5, 1, 0, 0, 0.1)
COUNTS = ("accumulated", "queue", "fetched")
BEAT = ms.Heartbeat("line", 3, True, 6, (REPORT,), 0.0, False, (), (), "", (Copied(0, 5, 1),))
COMMIT = ms.Commit(5, 2.0, 64, 1.0, False, (1.0,) * STAGES)
READY = ms.Ready("line", 3, 6, Attempt(3, 1), (ms.StageResult(1, 2.0, "h"),), 1.0, 64, None)
OFFER = ms.Offer("line", 3, (1,), BASE, (), False)
PLAN = ms.Plan(1, PEERS[1], Rung.BLEND, (ms.Donor(2, PEERS[2], ()),), 1.1, "why", None)
BEGIN = ms.Begin(
    "line", 3, 6, Attempt(3, 1), BASE, False, False, True, False, 2, ((PEERS[0], (0, 1)),), ((0, PEERS[:5]),), (PLAN,),
    (COMMIT,), ((1, PEERS[4]),),
)  # fmt: skip
PROMISE = ms.Promise("line", 4, ms.Ballot(1, PEERS[0]), ms.Ballot(0, PEERS[0]), replace(VIEW, number=4))
STATUS = replace(
    participant(PEERS[1]).status(), attempt=Attempt(3, 1), base=BASE, copies=((0, BASE),),
    stages=(ms.StageStatus(1, BASE, Attempt(3, 1), True),), evaluated=((5, 2.0),), commits=(COMMIT,),
    paths=((0, PEERS[:5]),), snapshots=PRESENCE.snapshots,
)  # fmt: skip
CONTACT = ms.Contact(PEERS[1], ("/ip4/127.0.0.1/tcp/1",) * (ADDRESSES_MAX + 1))
WAIT = ms.Wait(2, 4, Direction.FORWARD, PEERS[2], True)
OF_GROUP = ms.Wait(-1, 1, Direction.FORWARD, PEERS[2], True)
CLAIM = ms.Share("line", 3, 6, Attempt(3, 1), 1, ((0, 1),), "signed")
NOT_SHOWN = ms.Poisoned("line", 3, 6, Attempt(3, 1), 1, 0, "", PEERS[2], 1.0, beside=2)
JUDGE = ms.Judge("line", 3, 6, Attempt(3, 1), 1, 0, PEERS[1], PEERS[2], 2, CLAIM)
DOUBTED = ms.Doubted("line", 3, 6, Attempt(3, 1), 1, PEERS[2])
WAITS = ms.Waits("line", 3, 6, Attempt(3, 1), (WAIT, OF_GROUP))
WHOLE = SETTINGS.microbatches * (SETTINGS.stages + 2)
ODD_GIVEN: tuple[tuple[Given, ...], ...] = (
    (Given("a", -1, 0),), (Given("a", 1, -1),), (Given("a", 1, STAGES + 1),), (Given("a" * 65, 1, 0),),
    (Given("a", 1, 0), Given("a", 1, 0)), (Given("a", WHOLE, 0), Given("b", 1, 0)),
    (Given("a", 1, 0, -1),), (Given("a", 1, 0, 1),), (Given("a", 0, 0, HUGE, False),),
    tuple(Given(str(n), 0, 0) for n in range(CREDITED_MAX + 1)),
)  # fmt: skip
ODD_CREDITS: tuple[tuple[Credit, ...], ...] = (
    (Credit("a", -1, 0.0, 0),), (Credit("a", HUGE, 0.0, 0),), (Credit("a", 0, 0.0, HUGE),), (Credit("a", 0, -1.0, 0),),
    (Credit("a", 0, 0.0, 0, -1),), (Credit("a", 0, 0.0, 0, HUGE),),
    (Credit("a", 0, 1e13, 0),), (Credit("a" * 65, 0, 0.0, 0),), (Credit("a", 0, 0.0, 0), Credit("a", 0, 0.0, 0)),
    tuple(Credit(str(n), 0, 0.0, 0) for n in range(CREDITED_MAX + 2)),
)  # fmt: skip
LENT = LentCopy(1, "p", BASE, "d")
ODD_LENT: tuple[tuple[LentCopy, ...], ...] = (
    *((LENT._replace(stage=stage),) for stage in ODD_STAGES), *((LENT._replace(version=odd),) for odd in ODD_VERSIONS),
    (LENT._replace(keeper="k" * 65),), (LENT._replace(digest=""),), (LENT._replace(digest="d" * 129),), (LENT,) * 5,
)  # fmt: skip
ODD_SHARES = (((PEERS[0], -1),), ((PEERS[0], HUGE),), tuple((PEERS[0], 0) for _ in range(2 * GROUP_MAX + 1)))
ODD_RELAYED = (
    (("r", -1),), (("r", HUGE),), (("", 1),), (("r" * 65, 1),), (("r", 1), ("r", 1)),
    tuple((f"r{n}", 1) for n in range(RELAYS_TOLD_MAX + 1)),
)  # fmt: skip
ODD_ATTEMPTS = (Attempt(-2, 0), Attempt(0, -1), Attempt(HUGE, 0), Attempt(0, HUGE))


@pytest.mark.parametrize(
    ("message", "field", "values"),
    [
        (BEAT, "view", (-2, HUGE)),
        (BEAT, "step", (-1, HUGE)),
        (BEAT, "done", (-1, HUGE)),
        (BEAT, "busy_seconds", (-1.0, 1.7e308, float("nan"), float("inf"))),
        (BEAT, "stages", [(replace(REPORT, stage=stage),) for stage in ODD_STAGES] + [(REPORT, REPORT)]),
        (BEAT, "stages", [(replace(REPORT, applied=step),) for step in (-2, HUGE)]),
        (BEAT, "stages", [(replace(REPORT, **{name: n}),) for name in COUNTS for n in (-1, HUGE)]),
        (BEAT, "stages", [(replace(REPORT, seconds=seconds),) for seconds in (-1.0, 1.7e308, float("nan"))]),
        (BEAT, "stages", [(replace(REPORT, line_seconds=seconds),) for seconds in (-1.0, 1.7e308, float("nan"))]),
        (BEAT, "stages", [(replace(REPORT, state="x" * 4000),)]),
        (BEAT, "copies", [(Copied(stage, 5, 0),) for stage in ODD_STAGES] + [(Copied(0, -1, 0),), (Copied(0, 5, -1),)]),
        (BEAT, "validation", [((-1, 1.0),), ((STEPS + 1, 1.0),), ((1, 1.0),) * 65]),
        (BEAT, "commits", [(replace(COMMIT, step=step),) for step in (-1, STEPS + 1)] + [(COMMIT,) * 65]),
        (BEAT, "commits", [(replace(COMMIT, loss=1e30),), (replace(COMMIT, tokens=HUGE),)]),
        (BEAT, "commits", [(replace(COMMIT, norms=(1.0,) * (STAGES + 1)),)]),
        (BEAT, "commits", [(replace(COMMIT, given=given),) for given in ODD_GIVEN]),
        (BEAT, "lent", ODD_LENT),
        (BEGIN, "lent", ODD_LENT),
        (BEGIN, "installs", [(replace(PLAN, told=told),) for told in (("d" * 129,), ("d",) * 9)]),
        (BEGIN, "credits", ODD_CREDITS),
        (READY, "results", [(ms.StageResult(1, 2.0, "h", shares),) for shares in ODD_SHARES]),
        (ms.Suspect("line", 3, PEERS[1], "silent", ""), "kind", ("", "other")),
        (ms.Suspect("line", 3, PEERS[1], "silent", ""), "detail", ("x" * 4000,)),
        (OFFER, "view", (-1, HUGE)),
        (OFFER, "stages", [(stage,) for stage in ODD_STAGES] + [(), (1, 1)]),
        (OFFER, "base", [replace(BASE, step=-1), *(replace(BASE, attempt=attempt) for attempt in ODD_ATTEMPTS)]),
        (OFFER, "neighbours", [(CONTACT,) * (GROUP_MAX + 1)]),
        (ms.Answer("line", 3, (1,), True, (1,), "", False), "stages", [(stage,) for stage in ODD_STAGES]),
        (ms.Answer("line", 3, (1,), True, (1,), "", False), "exact", [(2,), (-1,)]),
        (ms.Resign("line", 3, (1,), False, False, ""), "stages", [(stage,) for stage in ODD_STAGES]),
        (ms.Resign("line", 3, (1,), True, True, ""), "seconds", [2.0**49]),
        (ms.Resign("line", 3, (1,), True, True, ""), "bytes_per_second", [-1.0]),
        (PROMISE, "ballot", [ms.Ballot(-1, PEERS[0]), ms.Ballot(HUGE, PEERS[0])]),
        (PROMISE, "accepted_ballot", [None, ms.Ballot(-1, PEERS[0]), ms.Ballot(HUGE, PEERS[0])]),
        (PROMISE, "accepted_view", [None, replace(VIEW, epochs=())]),
        (STATUS, "attempt", ODD_ATTEMPTS),
        (STATUS, "base", [version for version in ODD_VERSIONS if len(version.commit) < 100]),
        (STATUS, "stages", [(replace(STATUS.stages[0], stage=stage),) for stage in ODD_STAGES]),
        (STATUS, "stages", [(replace(STATUS.stages[0], version=replace(BASE, step=STEPS + 1)),)]),
        (STATUS, "stages", [(replace(STATUS.stages[0], reduced=attempt),) for attempt in ODD_ATTEMPTS]),
        (STATUS, "evaluated", [((-1, 1.0),), ((STEPS + 1, 1.0),), ((1, 1.0),) * 65]),
        (STATUS, "copies", [((stage, BASE),) for stage in ODD_STAGES] + [((0, BASE), (0, BASE))]),
        (STATUS, "copies", [((0, replace(BASE, attempt=attempt)),) for attempt in ODD_ATTEMPTS]),
        (STATUS, "commits", [(COMMIT,) * 65]),
        (STATUS, "paths", [((-1, PEERS[:5]),), ((2, PEERS[:5]),), ((0, PEERS[:4]),)]),
        (STATUS, "snapshots", [(replace(PRESENCE.snapshots[0], stage=STAGES),), PRESENCE.snapshots * 65]),
        (STATUS, "ready", [replace(READY, tokens=-1)]),
        (STATUS, "site", ["s" * (SITE_MAX + 1)]),
        (READY, "tokens", (-1, 2**31, HUGE)),
        (READY, "relayed", ODD_RELAYED),
        (STATUS, "ready", [replace(READY, relayed=relayed) for relayed in ODD_RELAYED]),
        (READY, "loss_sum", (1e25, -1e25)),
        (READY, "attempt", ODD_ATTEMPTS),
        (READY, "results", [(replace(READY.results[0], stage=stage),) for stage in ODD_STAGES]),
        (READY, "results", [(replace(READY.results[0], norm_squared=-1.0),), READY.results * 2]),
        (BEGIN, "step", (5, 7, HUGE)),
        (BEGIN, "attempt", ODD_ATTEMPTS),
        (BEGIN, "base", [version for version in ODD_VERSIONS if len(version.commit) < 100]),
        (BEGIN, "window", (0, -1, HUGE)),
        (BEGIN, "shares", [((PEERS[0], (m,)),) for m in (-1, 2, HUGE)]),
        (BEGIN, "shares", [((PEERS[0], (0, 1, 0)),), ((PEERS[0], (0,)), (PEERS[1], (0,)))]),
        (BEGIN, "paths", [((-1, PEERS[:5]),), ((2, PEERS[:5]),), ((0, ()),)]),
        (BEGIN, "learners", [((stage, PEERS[4]),) for stage in ODD_STAGES]),
        (BEGIN, "keepers", [((stage, PEERS[2]),) for stage in ODD_STAGES] + [((0, PEERS[2]),) * 2]),
        (BEGIN, "keepers", [tuple((0, Peer("k", n)) for n in range(STAGES + 2))]),
        (BEGIN, "installs", [(replace(PLAN, stage=stage),) for stage in ODD_STAGES]),
        (BEGIN, "installs", [(replace(PLAN, donors=(ms.Donor(stage, PEERS[2], ()),)),) for stage in ODD_STAGES]),
        (BEGIN, "installs", [(replace(PLAN, rate_factor=factor),) for factor in (0.0, -1.0, 11.0)]),
        (BEGIN, "installs", [(replace(PLAN, copy=replace(BASE, step=step)),) for step in (-1, 6)]),
        (ms.Share("line", 3, 6, Attempt(3, 1), 1, ((0, 1),)), "stage", ODD_STAGES),
        (ms.Share("line", 3, 6, Attempt(3, 1), 1, ((0, 1),)), "visits", [((0, 1),) * 5]),
        (ms.Share("line", 3, 6, Attempt(3, 1), 1, ((0, 1),), "s"), "signature", ["s" * 89]),
        (ms.Poisoned("line", 3, 6, Attempt(3, 1), 1, 0, ""), "stage", ODD_STAGES),
        (NOT_SHOWN, "beside", (-2, STAGES + 1, HUGE)),
        (NOT_SHOWN, "microbatch", (-2, -1, 2, HUGE)),
        (JUDGE, "beside", (-2, STAGES + 1, HUGE)),
        (JUDGE, "microbatch", (-2, -1, 2, HUGE)),
        (JUDGE, "claim", [replace(CLAIM, stage=stage) for stage in ODD_STAGES]),
        (JUDGE, "claim", [replace(CLAIM, step=-1), replace(CLAIM, visits=()), replace(CLAIM, visits=((0, 1),) * 2)]),
        (READY, "claims", [((PEERS[1], replace(CLAIM, stage=stage)),) for stage in ODD_STAGES]),
        (READY, "claims", [((PEERS[1], replace(CLAIM, visits=())),), ((PEERS[1], CLAIM),) * 5]),
        (DOUBTED, "stage", ODD_STAGES),
        (DOUBTED, "step", (-1, HUGE)),
        (DOUBTED, "attempt", ODD_ATTEMPTS),
        (WAITS, "step", (-1, HUGE)),
        (WAITS, "attempt", ODD_ATTEMPTS),
        (WAITS, "on", [(replace(WAIT, microbatch=m),) for m in (-2, 3, HUGE)]),
        (WAITS, "on", [(replace(WAIT, visit=visit),) for visit in (-1, STAGES + 1, HUGE)] + [(WAIT, WAIT)]),
        (WAITS, "on", [(replace(OF_GROUP, visit=stage),) for stage in ODD_STAGES] + [(OF_GROUP,) * 9]),
    ],
)  # fmt: skip
def test_a_message_out_of_range_is_dropped(message: Any, field: str, values: Any) -> None:
    assert objection(PEERS[1], message, VIEW, SETTINGS) == ""
    for value in values:
        assert objection(PEERS[1], replace(message, **{field: value}), VIEW, SETTINGS), value


def test_what_all_members_say_together_is_a_commit_that_everybody_lets_in() -> None:
    most = [replace(READY, loss_sum=9.9e23, tokens=2**30 - 1)] * (257 * GROUP_MAX)
    commit = summarise(6, 1.0, False, tuple(most), (), replace(SETTINGS, microbatches=1))
    assert objection(PEERS[0], replace(BEGIN, commits=(commit,)), VIEW, SETTINGS) == ""
