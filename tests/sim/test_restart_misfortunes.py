"""What goes wrong while a swarm starts again from its disks: survivors, strangers, liars, deaths at the wrong time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ftnode.protocol.words.effects import Send
from ftnode.protocol.words.messages import Begin
from ftnode.protocol.words.records import LIFETIME_SECONDS_MAX
from ftnode.protocol.words.types import Rung
from tests.sim.targets import best_view
from tests.sim.test_groups import final_weights
from tests.sim.test_restart import (
    SETTINGS,
    Swarm,
    TwoSides,
    lineages,
    switched_off_without_a_part_of_step_nine,
    undisturbed,
)

LONG = replace(SETTINGS, steps=400)


def from_disks(swarm: Swarm, step: int) -> bool:
    """Everything that was installed since the cut came from snapshots of that step."""
    return {(base.step, rung) for _, _, rung, base in swarm.installed} == {(step, Rung.SNAPSHOT)}


def test_weights_of_long_ago_do_not_keep_the_others_from_their_disks() -> None:
    """Somebody was cut off at step 4, was replaced, and is all that the power cut leaves."""
    swarm = Swarm(peers=5)
    swarm.until(4)
    survivor = swarm.world.by_id[swarm.holder_of(2)]
    swarm.world.pause(survivor)
    swarm.until(7)
    assert swarm.holder_of(2) != survivor.peer.id
    swarm.world.resume(survivor)
    swarm.until(8)
    assert survivor.participant.holder.versions[2].step < 6
    swarm.installed.clear()
    for index, host in enumerate([host for host in swarm.world.live() if host is not survivor]):
        swarm.world.kill(host, "power", silently=False)
        swarm.world.at(swarm.world.now + 0.5 + 0.4 * index, swarm.world.start, (host.peer.id, 1, True))
    swarm.until(SETTINGS.steps)
    assert from_disks(swarm, 6)


def test_who_remembers_a_commit_and_has_no_weights_does_not_either() -> None:
    swarm = Swarm()
    swarm.until(8)
    survivor = swarm.world.by_id[swarm.holder_of(2)]
    swarm.installed.clear()
    for index, host in enumerate([host for host in swarm.world.live() if host is not survivor]):
        swarm.world.kill(host, "power", silently=False)
        swarm.world.at(swarm.world.now + 0.5 + 0.4 * index, swarm.world.start, (host.peer.id, 1, True))
    swarm.world.lose_compute(survivor, "as a test")
    swarm.until(SETTINGS.steps)
    assert from_disks(swarm, 6)


def strangers_found_meanwhile() -> None:
    """They begin anew, a few steps, and meet a swarm that went on from its disks and is far ahead."""
    swarm = Swarm(LONG)
    swarm.until(30)
    names = set(swarm.power_cut())
    swarm.world.directory = apart = TwoSides(swarm.world, names)
    strangers = {f"stranger{index}" for index in range(4)}
    pairs = {pair for a in names for b in strangers for pair in ((a, b), (b, a))}
    swarm.world.network.block(pairs)
    swarm.until(33)
    living = best_view(swarm.world)
    assert living is not None and living.lineage.from_disks
    for name in sorted(strangers):
        swarm.world.start(name, 1, True)
    swarm.world.run(swarm.world.now + 8.0)
    theirs = {
        host.view.lineage.id for host in swarm.world.live() if host.peer.id in strangers and host.view is not None
    }
    assert len(theirs) == 1 and 0 < max(swarm.world.ledger.commits[theirs.pop()]) < 30
    apart.near = set()
    swarm.world.network.heal(pairs)
    swarm.world.run(swarm.world.now + 60.0, lambda: len(lineages(swarm)) == 1)
    assert lineages(swarm) == {living.lineage.id}
    swarm.goes_on()


def test_a_lineage_from_disks_does_not_yield_to_strangers_that_began_anew() -> None:
    strangers_found_meanwhile()


def keeper_is_refused_for_a_while() -> None:
    """Its record stands in the directory and its address refuses: nobody begins from nothing meanwhile."""
    swarm = Swarm(LONG, peers=1)
    swarm.world.kill(swarm.world.by_id["peer0"], "power", silently=False)
    swarm.world.start("keeper", 4, True)
    swarm.until(8)
    keeper = swarm.world.by_id["keeper"]
    swarm.world.kill(keeper, "power", silently=False)
    swarm.world.directory.shelves.clear()
    again, shelves = swarm.world.start("keeper", 4, True), swarm.world.directory.shelves
    swarm.world.run(400.0, lambda: "keeper" in shelves and any(p.snapshots for _, p in shelves["keeper"][0].presences))
    assert again.view is None, "it has told the directory of its disk, and nothing else"
    swarm.world.run(swarm.world.now + 0.5)
    swarm.world.kill(again, "power", silently=False)
    swarm.installed.clear()
    for index in range(4):
        swarm.world.start(f"stranger{index}", 1, True)
    swarm.world.run(swarm.world.now + 60.0)
    assert not swarm.installed
    swarm.world.start("keeper", 4, True)
    swarm.world.run(swarm.world.now + 60.0, lambda: len(swarm.installed) >= 4)
    assert {rung for _, _, rung, _ in swarm.installed} == {Rung.SNAPSHOT}


def test_nobody_begins_from_nothing_who_has_heard_of_disks() -> None:
    keeper_is_refused_for_a_while()


def test_the_leader_dies_in_the_wait() -> None:
    """Nobody else may vote yet: they give the view up, found another, and go on from the same disks."""
    swarm = switched_off_without_a_part_of_step_nine()
    swarm.world.run(200.0, lambda: any(text.startswith("others who were there") for text in swarm.waiting()))
    leader = next(host for host in swarm.world.live() if host.participant.leader is not None)
    swarm.world.kill(leader, "kill", silently=True)
    swarm.world.start("stranger", 1, True)
    swarm.until(10)
    assert all(base.step in (6, 9) for *_, base in swarm.installed)


def test_the_only_keeper_of_the_head_dies_when_its_snapshot_is_chosen() -> None:
    """The step is committed before anybody has it; when the keeper comes back, the head comes with it."""
    swarm = Swarm()
    swarm.until(8)
    head = swarm.holder_of(0)
    swarm.power_cut()
    begun: list[Begin] = []

    def dies(host: object, send: object) -> None:
        message = getattr(send, "message", None)
        if isinstance(message, Begin) and message.installs and not begun:
            begun.append(message)
            kill = partial(swarm.world.kill, silently=True)
            swarm.world.at(swarm.world.now, kill, (swarm.world.by_id[head], "kill"))

    swarm.world.on_send = dies
    swarm.world.run(200.0, lambda: bool(begun))
    swarm.world.run(swarm.world.now + 20.0)
    assert not swarm.world.by_id[head].alive
    swarm.world.start(head, 1, True)
    swarm.until(SETTINGS.steps)
    assert {base.step for *_, base in swarm.installed} == {6}


def test_the_power_goes_again_while_the_swarm_waits() -> None:
    swarm = Swarm()
    swarm.until(8)
    swarm.power_cut()
    swarm.world.run(200.0, lambda: any(text.startswith("others who") for text in swarm.waiting()))
    swarm.power_cut()
    swarm.until(SETTINGS.steps)
    swarm.world.run(swarm.world.now + 2.0)
    assert from_disks(swarm, 6) and final_weights(swarm.world) == undisturbed()


def one_lies() -> None:
    """It tells of a whole step that never was, and of a state of its own stage that nobody gets."""
    swarm = Swarm()
    swarm.until(8)
    swarm.world.disks.liars.add("liar")
    swarm.power_cut()
    swarm.world.start("liar", 1, True)
    swarm.until(SETTINGS.steps, 800.0)
    swarm.world.run(swarm.world.now + 2.0)
    assert final_weights(swarm.world) == undisturbed()
    view = best_view(swarm.world)
    assert view is not None and view.number < 2**36


def test_a_liar_costs_time_and_nothing_else() -> None:
    one_lies()


def test_disks_that_never_come_are_given_up_and_the_run_begins() -> None:
    """Their record has expired, the wait is over, and nobody is told any more that the run halts."""
    swarm = Swarm(replace(SETTINGS, steps=6), peers=0)
    swarm.world.disks.liars.add("boaster")
    swarm.world.start("boaster", 1, True)
    swarm.world.run(400.0, lambda: any(shelf.presences for shelf in swarm.world.directory.shelves.get("boaster", ())))
    swarm.world.run(swarm.world.now + 0.5)
    swarm.world.kill(swarm.world.by_id["boaster"], "kill", silently=False)
    for index in range(4):
        swarm.world.start(f"stranger{index}", 1, True)
    swarm.world.run(400.0, lambda: len(swarm.installed) == 4)
    assert {rung for _, _, rung, _ in swarm.installed} == {Rung.INITIAL}
    assert not any("halted" in text or "disks" in text for text in swarm.waiting())


def test_one_disk_without_the_head_does_not_keep_the_run_from_beginning_anew() -> None:
    """A liar's, or what one peer alone has left. It is waited for all the same, and nobody takes it from the disk."""
    swarm = Swarm()
    swarm.until(8)
    keeper, world = swarm.holder_of(1), swarm.world
    swarm.power_cut(away=[host.peer.id for host in world.live()])
    kept = list(world.disks.held[keeper])
    world.directory.shelves.clear()
    began, wait = world.now, SETTINGS.restart_wait_seconds + LIFETIME_SECONDS_MAX
    for name in (keeper, "stranger0", "stranger1", "stranger2"):
        world.start(name, 1, True)
    world.run(began + wait)
    assert not swarm.installed and any(text.startswith("halted: of step 6") for text in swarm.waiting())
    world.run(began + wait + 30.0, lambda: len(swarm.installed) >= 4)
    assert {rung for _, _, rung, _ in swarm.installed} == {Rung.INITIAL}
    assert world.disks.held[keeper] == kept
    swarm.until(3)


def test_a_snapshot_is_not_blamed_for_those_who_were_to_load_it() -> None:
    """The head's only snapshot: two receivers lose their compute in the middle of it."""
    swarm = Swarm(replace(SETTINGS, steps=60))
    swarm.until(8)
    disks, crashed = swarm.world.disks.held, set[object]()
    for name in disks:
        disks[name] = [one for one in disks[name] if one.snapshot.version.step == 6]
    swarm.power_cut()

    def crash(_: object, send: Send) -> None:
        begin = send.message
        if isinstance(begin, Begin) and len(crashed) < 2 and begin.attempt not in crashed:
            for plan in begin.installs:
                if plan.stage == 0 and plan.rung is Rung.SNAPSHOT:
                    crashed.add(begin.attempt)
                    host = swarm.world.by_id[plan.peer.id]
                    swarm.world.at(swarm.world.now + 0.06, swarm.world.lose_compute, (host, "as a test"))

    swarm.world.on_send = crash
    swarm.until(9, 600.0)
    assert len(crashed) == 2 and {base.step for *_, base in swarm.installed} == {6}
    founded = {name for (name, _), view in swarm.world.ledger.views.items() if view.lineage.from_disks}
    assert len(founded) == 1, "and it was not waited for once more"
