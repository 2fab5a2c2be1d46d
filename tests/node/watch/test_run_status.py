"""What a participant of the virtual world tells watchers, while it trains, when a stage is lost, and at the end."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from ftnode.node.links.undigested import Failures
from ftnode.node.manifests.presets import preset
from ftnode.node.watch.old_recoveries import OldRecoveries
from ftnode.node.watch.peer_latency import Acquaintance
from ftnode.node.watch.progress import Progress
from ftnode.node.watch.run_status import Surroundings, look, run_status, undigested_rows
from ftnode.node.watch.status import COMMITS_MAX, RecoveryRow, SwarmStatus, decode_status, encode_status
from ftnode.node.watch.status_table import peer_table, plain_lines
from ftnode.node.watch.time_use import TimeUse
from ftnode.protocol.chronicle import BEFORE_US, Chronicle, Rebuild
from ftnode.protocol.participant import Participant
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.codec import TEXT_MAX
from ftnode.protocol.words.messages import Commit, StageReport
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Rung, Version, names_of
from tests.protocol.pictures import picture
from tests.protocol.situations import NOW, A, B, C, report, view_of
from tests.sim.host import Host
from tests.sim.targets import best_view
from tests.sim.world import World

SETTINGS = Settings(
    run="sim", stages=3, steps=40, microbatches=6, window=4, live_activations=2, lease_seconds=3.0,
    minority_wait_seconds=6.0, evaluate_every=5, evaluation_microbatches=1,
)  # fmt: skip
MANIFEST = preset("tiny")


def world(peers: int, settings: Settings = SETTINGS) -> World:
    made = World(settings, 3)
    for index in range(peers):
        made.at(0.1 * index, made.start, (f"peer{index}", 1, True))
    return made


def leader(sim: World) -> Host:
    view = best_view(sim)
    assert view is not None
    return next(host for host in sim.live() if host.peer == view.leader)


def train(sim: World, host: Host | None, seconds: float, step: int = 10**6) -> Progress:
    """Let time pass as a node would see it: `host`, by default whoever leads, looks every second."""
    progress, until = Progress(), sim.now + seconds
    while sim.now < until:
        sim.run(sim.now + 1.0)
        if best_view(sim) is None:
            continue
        picture = (host or leader(sim)).participant.picture
        look(picture, progress, sim.now)
        if picture.history.newest_step >= step:
            break
    return progress


def status_of(sim: World, host: Host, progress: Progress, met: dict[str, Acquaintance] | None = None) -> SwarmStatus:
    around = Surroundings("cpu", progress, met or {}, "direct: it is", 1763755200.0, "its directory")
    found = run_status(host.participant.picture, MANIFEST, around, sim.now)
    assert decode_status(encode_status(found)) == found, "it survives its journey"
    return found


def test_a_run_in_one_line_and_a_line_per_stage() -> None:
    sim = world(5)
    progress = train(sim, None, 60.0, step=12)
    host = leader(sim)
    found = status_of(sim, host, progress)
    assert found.state == "training" and found.step >= 12 and found.volunteers == 5
    assert found.eta_seconds is not None and 0 < found.eta_seconds < 1000
    assert found.commit_age is not None and found.commit_age < 5
    assert found.validation is not None and found.perplexity == pytest.approx(math.exp(found.validation))
    assert found.validation_step is not None and found.validation_step % 5 == 0
    assert (found.clock, found.speaker.reach) == (1763755200.0, "direct: it is")
    assert found.trouble == "its directory" and not found.waiting
    assert [stage.stage for stage in found.summaries] == [0, 1, 2, 3]
    for stage in found.summaries:
        assert (stage.holders, stage.reason) == (1, ""), stage
        assert stage.step > 0 and stage.step_age is not None and stage.step_age < 5
    own = [stage.tokens_per_second for stage in found.summaries if stage.stage in host.participant.mine]
    assert all(own), "its own pace it knows"
    text = "\n".join(plain_lines(found))
    assert "to go" in text and "perplexity" in text and "5 volunteers" in text
    assert run_status(host.participant.picture, MANIFEST, Surroundings("cpu"), sim.now, curve=False).commits == ()


def test_what_peers_made_this_node_raise_is_told_without_their_words() -> None:
    failures, sim = Failures(), world(5)
    sim.run(5.0)
    alone = Participant(Peer("alone", 1), sim.settings, Random(1), addresses=("/x",))
    assert undigested_rows(failures) == ()
    for text, kind in [("one", KeyError), ("two", KeyError), ("three", TypeError)]:
        try:
            raise kind(f"secret {text}")
        except (KeyError, TypeError) as error:
            failures.note("12D3KooWmallory", "/ftnode/step/3", error)
    newest, oldest = rows = undigested_rows(failures)
    assert (newest.count, oldest.count) == (1, 2) and newest.protocol == "/ftnode/step/3"
    assert newest.place.startswith("watch/test_run_status.py:") and newest.place.endswith(" (TypeError)")
    for core in (leader(sim).participant, alone):
        found = run_status(core.picture, MANIFEST, Surroundings("cpu", undigested=rows), sim.now)
        assert found.undigested == rows and decode_status(encode_status(found)) == found
        assert b"secret" not in encode_status(found) and b"mallory" not in encode_status(found)


def test_one_commit_tells_nothing_of_the_time_left() -> None:
    sim = world(5)
    found = []
    while not found or found[-1].step < 2:
        sim.run(sim.now + 0.05)
        if best_view(sim) is not None:
            found.append(status_of(sim, leader(sim), Progress()))
    first = next(status for status in found if status.step == 1)
    assert first.state == "training" and first.eta_seconds is None and "to go" not in "\n".join(plain_lines(first))
    assert found[-1].eta_seconds is not None and found[-1].eta_seconds > 0


def test_one_commit_tells_nothing_of_how_long_a_step_takes() -> None:
    """Nor does anything stall then: a leader's first commit took no time, since there was none before."""
    sim, progress = world(5), Progress()
    while progress.commit is None:
        sim.run(sim.now + 0.05)
        if best_view(sim) is not None:
            look(leader(sim).participant.picture, progress, sim.now)
    assert progress.commit[0] == 1
    for stage in range(SETTINGS.stage_count):
        progress.stages[stage] = (1, sim.now)
    sim.now += 2.5
    assert "takes 0.0 s" not in "\n".join(plain_lines(status_of(sim, leader(sim), progress)))


def test_who_is_in_the_swarm() -> None:
    sim = world(5)
    progress = train(sim, None, 60.0, step=5)
    host = leader(sim)
    other = next(peer for peer in sorted(host.participant.members) if peer != host.peer)
    met = {other.id: Acquaintance("relayed", "/x/p2p-circuit", 0.02, "0.1.0", use=TimeUse(0.1, 0.9, 0.0, 0.8, 2.5e6)),
           "point": Acquaintance("direct", "/ip4/192.0.2.7/tcp/31337", 0.01, "0.1.0", "bootstrap")}  # fmt: skip
    rows = {row.peer: row for row in status_of(sim, host, progress, met).peers}
    assert set(rows) == {f"peer{index}" for index in range(5)} | {"point"}
    assert sorted(row.role for row in rows.values()) == ["bootstrap", *["holder"] * 3, "leader", "standby"]
    assert (rows[host.peer.id].path, rows[host.peer.id].stages) == ("self", host.participant.mine)
    assert (rows[other.id].path, rows[other.id].latency) == ("relayed", 0.02)
    assert (rows[other.id].sent, rows[other.id].line_full, rows[other.id].line_up) == (0.9, 0.8, 2.5e6)
    found = status_of(sim, host, progress, met)
    assert (found.limiting_peer, found.limited_by) == (other.id, "line")
    assert decode_status(encode_status(found)) == found
    assert rows["point"].addresses == ("/ip4/192.0.2.7/tcp/31337",)
    lines = peer_table(status_of(sim, host, progress, met)).lines()
    assert len(lines) == 7 and any("20.0 ms" in line for line in lines)


def test_a_lost_stage_says_what_it_waits_for() -> None:
    sim = world(4)
    progress = train(sim, None, 60.0, step=5)
    host = leader(sim)
    victim = next(each for each in sim.live() if each.peer != host.peer and each.participant.mine != (0,))
    (stage,) = victim.participant.mine
    sim.kill(victim, "kill", silently=False)
    sim.run(sim.now + 3.0)
    assert status_of(sim, host, progress).volunteers == 3, (
        "its record in the directory outlives it, but its address refuses"
    )
    sim.run(sim.now + 7.0)
    found = status_of(sim, host, progress)
    (lost,) = [each for each in found.summaries if each.stage == stage]
    assert (lost.state, lost.holders) == ("vacant", 0) and "a volunteer for stage" in lost.reason
    assert found.state == "waiting" and found.eta_seconds is None
    assert all(each.reason for each in found.summaries), "the others wait with it, and say so"
    assert {each.state for each in found.summaries if each is not lost} == {"waiting"}
    assert found.volunteers == 3


def test_a_lost_head_is_called_so() -> None:
    sim = world(4)
    train(sim, None, 60.0, step=5)
    victim = next(each for each in sim.live() if 0 in each.participant.mine)
    sim.kill(victim, "kill", silently=False)
    sim.run(sim.now + 15.0)
    assert status_of(sim, leader(sim), Progress()).waiting == "a volunteer for the head"


def _loses_a_finished_stage(sim: World) -> None:
    """Nobody is counted out any more, but whoever is gone holds nothing."""
    host = leader(sim)
    victim = next(each for each in sim.live() if each.peer != host.peer and each.participant.mine)
    stages = victim.participant.mine
    assert victim.participant.picture.last_copies(sim.now) == stages, "it may know what goes with it"
    sim.kill(victim, "kill", silently=True)
    sim.run(sim.now + 2.5 * SETTINGS.lease_seconds)
    found = status_of(sim, host, Progress())
    lost = [stage for stage in found.summaries if not stage.holders]
    assert found.state == "finished" and tuple(stage.stage for stage in lost) == stages
    assert all(stage.reason.startswith("can no longer be had: no word from") for stage in lost)
    assert f"{names_of(stages)} can no longer be had" in plain_lines(found)[-1]


def test_a_second_holder_is_no_last_copy_while_it_is_heard() -> None:
    sim = world(7, replace(SETTINGS, steps=30, replicas=2))
    train(sim, None, 200.0, step=30)
    sim.run(sim.now + 5.0)
    view = best_view(sim)
    assert view is not None
    stage, (one, other, *_) = next((stage, group) for stage, group in enumerate(view.holders) if len(group) > 1)
    hosts = {host.peer: host for host in sim.live()}
    assert hosts[one].participant.picture.last_copies(sim.now) == ()
    sim.kill(hosts[other], "kill", silently=True)
    sim.run(sim.now + 2.5 * SETTINGS.lease_seconds)
    assert hosts[one].participant.picture.last_copies(sim.now) == (stage,)


def test_the_end_and_the_beginning() -> None:
    sim = world(4, replace(SETTINGS, steps=3))
    progress = train(sim, None, 90.0, step=3)
    sim.run(sim.now + 5.0)
    found = status_of(sim, leader(sim), progress)
    assert found.state == "finished" and found.eta_seconds is None
    assert {stage.reason for stage in found.summaries} == {""}
    assert "ftnode export" in plain_lines(found)[-1] and "4 stages have a single holder" in plain_lines(found)[-1]
    _loses_a_finished_stage(sim)
    alone = World(SETTINGS, 1)
    host = alone.start("alone", 1)
    alone.run(0.5)
    first = status_of(alone, host, Progress())
    assert first.state == "waiting" and first.summaries == () and [row.peer for row in first.peers] == ["alone"]


def rebuilt(stage: int, step: int, newcomer: Peer, rung: Rung = Rung.BLEND, lost: Peer | None = None) -> Rebuild:
    return Rebuild(stage, step, rung, 1, lost, newcomer, "a reason", 0.0, 1.0)


def test_a_swarm_that_started_again_has_lost_nothing() -> None:
    sim = world(4)
    progress = train(sim, None, 60.0, step=5)
    host = leader(sim)
    chronicle, me = host.participant.chronicle, host.peer
    chronicle.rebuilds.clear()
    for stage in range(4):
        chronicle.rebuilds[4, stage] = rebuilt(stage, 4, me, Rung.SNAPSHOT)
    assert status_of(sim, host, progress).recoveries == ()
    chronicle.rebuilds[5, 2] = rebuilt(2, 5, me, Rung.SNAPSHOT, Peer("gone", 1))
    assert [(row.step, row.lost) for row in status_of(sim, host, progress).recoveries] == [(5, "gone")]


def test_the_step_of_a_swarm_that_started_again_is_that_of_its_weights() -> None:
    """Until the next commit, nobody remembers one."""
    sim = world(4)
    progress = train(sim, None, 60.0, step=5)
    host = leader(sim)
    step = host.participant.picture.highest_step
    host.participant.chronicle.forget()
    assert host.participant.picture.history.newest_step == 0
    found = status_of(sim, host, progress)
    assert step >= 5 and found.step >= 5 and found.loss is None
    view = host.participant.picture.view
    assert view is not None
    start = Version(9, "kept", Attempt(0, 9))
    waits = host.participant.picture._replace(view=replace(view, lineage=replace(view.lineage, start=start)))
    assert run_status(waits, MANIFEST, Surroundings("cpu"), sim.now).step == 9, "its weights are on disks"


def test_who_comes_later_learns_what_others_saw_of_a_recovery() -> None:
    """Only of recoveries that the commits told of, only what is missing, and whoever tells first."""
    sim = world(4)
    train(sim, None, 60.0, step=5)
    host, past = leader(sim), OldRecoveries()
    picture, chronicle = host.participant.picture, host.participant.chronicle
    chronicle.rebuilds.clear()
    ours = Rebuild(1, 5, Rung.BLEND, 2, Peer("a", 1), Peer("b", 1), "seen", 0.0, 1.0)
    chronicle.rebuilds[4, 2] = Rebuild(2, 4, Rung.BLEND, -1, None, None, BEFORE_US, 0.0, 1.5)
    chronicle.rebuilds[4, 3] = Rebuild(3, 4, Rung.SNAPSHOT, -1, None, None, BEFORE_US, 0.0, 1.5)
    chronicle.rebuilds[5, 1] = ours

    def shown() -> list[tuple[object, ...]]:
        around = Surroundings("cpu", Progress(), filled=past.filled)
        rows = run_status(picture, MANIFEST, around, sim.now).recoveries
        return [(row.step, row.stage, row.lost, row.newcomer, row.reason, row.seconds) for row in rows]

    mine = (5, 1, "a", "b", "seen", 1.0)
    assert shown() == [(4, 2, "", "", BEFORE_US, 1.5), mine]
    row = RecoveryRow(2, 4, "blend", 1, "gone", "here", "why\x1b[2J", 9.0)
    assert past.filled(row) == row
    past.learn([replace(row, epoch=-1, lost="liar"), replace(row, step=9)], chronicle.rebuilds)
    past.learn([replace(row, stage=1, step=5, lost="liar"), replace(row, rung="copy")], chronicle.rebuilds)
    assert shown() == [(4, 2, "", "", BEFORE_US, 1.5), mine]
    past.learn([row, replace(row, stage=3, rung="snapshot")], chronicle.rebuilds)
    past.learn([replace(row, lost="late")], chronicle.rebuilds)
    assert shown() == [(4, 2, "gone", "here", "why [2J", 1.5), (4, 3, "gone", "here", "why [2J", 1.5), mine]
    past.learn([], {})
    assert shown() == [(4, 2, "", "", BEFORE_US, 1.5), mine], "bounded by what is remembered"


def test_what_a_recovery_took_stays_when_the_next_one_takes_less() -> None:
    sim = world(4)
    progress = train(sim, None, 60.0, step=5)
    host = leader(sim)
    picture, chronicle = host.participant.picture, host.participant.chronicle
    newcomer = next(peer for peer in picture.members if peer != host.peer)
    report = picture.reports[newcomer]
    stage = report.stages[0].stage
    chronicle.rebuilds.clear()

    def say(size: int) -> None:
        told = replace(report, stages=(replace(report.stages[0], fetched=size),))
        look(picture._replace(reports={**picture.reports, newcomer: told}), progress, sim.now)

    chronicle.rebuilds[3, stage] = rebuilt(stage, 3, newcomer)
    say(195_000_000)
    chronicle.rebuilds[4, stage] = rebuilt(stage, 4, newcomer)
    say(6_000_000)
    say(0)
    assert progress.fetched == {(3, stage): 195_000_000, (4, stage): 6_000_000}
    assert [row.bytes_fetched for row in status_of(sim, host, progress).recoveries] == [195_000_000, 6_000_000]
    chronicle.rebuilds.clear()
    say(0)
    assert progress.fetched == {}, "bounded by what is remembered of rebuilds"


def test_who_leads_says_what_it_chose_and_over_what() -> None:
    """A newcomer learns a stage of the founder, who holds all of them."""
    sim = World(SETTINGS, 3)
    founder = sim.start("founder", 4, True)
    progress = train(sim, founder, 20.0, step=2)
    assert status_of(sim, founder, progress).plan == ""
    newcomer = sim.start("newcomer", 2, True)
    progress = train(sim, founder, 20.0)
    found = status_of(sim, founder, progress)
    assert str(newcomer.peer) in found.plan and "s then, and" in found.plan and "rejected" in found.plan
    (line,) = (line for line in plain_lines(found, per_peer=True) if line.startswith("last plan: "))
    assert found.plan in line and not any("last plan" in line for line in plain_lines(found))
    other = next(host for host in sim.live() if host is not founder)
    assert status_of(sim, other, progress).plan == ""


HEARD = view_of((A,), (B,), (C,))
LARGEST = chr(0x1F600)
"""Four bytes of UTF-8."""


def told(shown: Picture) -> SwarmStatus:
    """What a watcher reads of it."""
    return decode_status(encode_status(run_status(shown, MANIFEST, Surroundings("cpu"), NOW)))


@pytest.mark.parametrize("seconds", [5e-324, 1e-300, 0.5])
def test_no_pace_that_somebody_says_keeps_watchers_from_the_rest(seconds: float) -> None:
    """Readers refuse what is not finite, and all of a status with it."""
    reports = {A: report(), B: report(stages=(StageReport(1, "training", 7, 0, 0, 0, seconds),))}
    chronicle = Chronicle()
    for step in range(1, 9):
        chronicle.commit(Commit(step, 1.0, 1000, seconds, False, ()), NOW)
    found = told(picture(view=HEARD, reports=reports, contacts={A: ()})._replace(history=chronicle))
    assert found.stages[1].state == "training" and (found.tokens_per_second is None) == (seconds < 0.5)
    assert (found.stages[1].tokens_per_second is None) == (seconds < 0.5)


def test_of_a_large_swarm_a_status_has_holders_of_each_stage() -> None:
    crowd = [Peer(f"p{number}", 1) for number in range(31 * 20)]
    groups = [tuple(crowd[31 * stage : 31 * (stage + 1)]) for stage in range(20)]
    found = told(picture(view=view_of((A,), *groups), contacts={A: ()}))
    assert {row.stage for row in found.stages} == {*range(21)} and len(found.stages) <= COMMITS_MAX
    assert [stage.holders for stage in found.summaries] == [1, *[31] * 20]


@pytest.mark.parametrize("rebuilds", [1, 256])
def test_no_words_of_a_leader_keep_watchers_from_the_rest(rebuilds: int) -> None:
    """It gives its reasons in a Begin: 4 MB of them."""
    chronicle = Chronicle()
    for step in range(rebuilds):
        lost = Rebuild(1, step, Rung.BLEND, 3, A, B, LARGEST * TEXT_MAX, 0.0, None)
        chronicle.rebuilds[step, 1] = lost
    found = told(picture(view=HEARD, contacts={A: ()})._replace(history=chronicle))
    assert found.leader == A.id and len(found.summaries) == 3
    assert len(found.recoveries) == (1 if rebuilds == 1 else 0)
