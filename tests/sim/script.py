"""Scripted worlds: a schedule as text, and what came of it as text.

A script has one instruction a line; `#` starts a comment. What happened is written below a line of dashes.

    set stages=4 steps=9 lease=4 minority=6 microbatches=2
    peers a b c d e
    peers f g hold=2 head=no
    commit 3 +0.2: cut a b from c d e
    before Ready sent by stage:3 from commit 4: kill it
    at 40: heal
    until commit 9

WHO is a peer's name, `leader`, `stage:K` (who holds it), or `it` (who sent or received the message).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ftnode.protocol.words.effects import Install, Send
from ftnode.protocol.words.messages import Message
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Version
from ftnode.protocol.words.view import View
from tests.sim.compute import Poison
from tests.sim.host import Host
from tests.sim.targets import best_view
from tests.sim.world import World

DEADLINE_SECONDS = 600.0
"""A script that has not come to its end by then fails."""
MESSAGE = re.compile(r"(before|after) (\w+) (sent|received) by (\S+)(?: from commit (\d+))?(?: no (\d+))?$")


@dataclass(slots=True)
class Watch:
    """An instruction that waits for a message."""

    before: bool
    kind: str
    sending: bool
    who: str
    from_commit: int
    left: int
    action: str


@dataclass
class Play:
    """One script being performed."""

    text: str
    story: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def perform(self) -> str:
        """What happened, a line each. Raises Violation, and AssertionError when the end is not reached in time."""
        lines = [line.split("#")[0].strip() for line in self.text.splitlines()]
        lines = [line for line in lines if line]
        self.watches: list[Watch] = []
        self.on_commits: list[tuple[int, float, str]] = []
        self.lineages: dict[str, str] = {}
        self.until, self.peers = 0, 0
        for line in lines:
            if line.startswith("set "):
                self.settings |= {name: value for name, _, value in (pair.partition("=") for pair in line[4:].split())}
        self._make_world()
        for line in lines:
            self._read(line)
        self.world.run(DEADLINE_SECONDS, lambda: self.world.ledger.top_commit() >= self.until)
        assert self.world.ledger.top_commit() >= self.until, "\n".join([*self.story, *self.world.notes])
        return "\n".join(self.story) + "\n"

    def _make_world(self) -> None:
        chosen = self.settings
        lease = float(chosen.get("lease", 4))
        microbatches = int(chosen.get("microbatches", 2))
        settings = Settings(
            run="script",
            stages=int(chosen.get("stages", 4)),
            steps=int(chosen.get("steps", 12)),
            microbatches=microbatches,
            window=int(chosen.get("window", microbatches)),
            lease_seconds=lease,
            minority_wait_seconds=float(chosen.get("minority", 1.5 * lease)),
            swap=chosen.get("swap") == "yes",
            head_every=int(chosen.get("head_every", 0)),
            shadow_every=int(chosen.get("shadow_every", 0)),
            snapshot_every=int(chosen.get("snapshot_every", 0)),
        )
        self.world = World(settings, int(chosen.get("seed", 1)), delay_max=0.02)
        self.world.forward_seconds = 0.01
        self.world.on_send, self.world.on_receive = self._on_send, self._on_receive
        self.world.on_commit, self.world.on_view = self._on_commit, self._on_view
        self.world.on_installed, self.world.on_remark = self._on_installed, self._on_remark

    # -- reading

    def _read(self, line: str) -> None:
        if line.startswith("set "):
            return
        if line.startswith(("peers ", "together ")):
            words = line.split()
            hold = next((int(word[5:]) for word in words if word.startswith("hold=")), 1)
            head = "head=no" not in words
            for name in [word for word in words[1:] if "=" not in word]:
                self.peers += 1
                self.world.at(0.3 * self.peers if words[0] == "peers" else 0.1, self.world.start, (name, hold, head))
            return
        if line.startswith("until commit "):
            self.until = int(line.split()[2])
            return
        when, action = line.split(": ", 1)
        match = MESSAGE.match(when)
        if match:
            order, kind, way, who, commit, number = match.groups()
            self.watches.append(
                Watch(order == "before", kind, way == "sent", who, int(commit or 0), int(number or 1), action)
            )
        elif when.startswith("at "):
            self.world.at(float(when[3:]), self._do, (action, None))
        elif when.startswith("commit "):
            words = when.split()
            self.on_commits.append((int(words[1]), float(words[2]) if len(words) > 2 else 0.0, action))
        else:
            raise ValueError(f"cannot read {line!r}")

    def _who(self, name: str, it: Host | None) -> Host:
        if name == "it":
            assert it is not None
            return it
        view = best_view(self.world)
        if name == "leader":
            assert view is not None
            return self.world.by_id[view.leader.id]
        if name.startswith("stage:"):
            assert view is not None
            return self.world.by_id[view.holders[int(name[6:])][0].id]
        return self.world.by_id[name]

    # -- doing

    def _do(self, action: str, it: Host | None) -> None:
        """Carry out one instruction now."""
        verb, *words = action.split()
        world = self.world
        if verb == "start":
            world.start(words[0], int(words[1]) if len(words) > 1 else 1)
            world.remark(f"{words[0]} starts")
        elif verb == "kill":
            for name in words:
                world.kill(self._who(name, it), "kill", silently=False, in_flight=it is not None)
        elif verb == "restart":
            host = self._who(words[0], it)
            world.kill(host, "restart", silently=False)
            world.at(world.now + float(words[1]), world.start, (host.peer.id, host.hold))
        elif verb == "power":  # everybody goes, and comes back one after the other
            for index, host in enumerate(world.live()):
                world.kill(host, "power", silently=False)
                world.at(world.now + float(words[0]) * (index + 1), world.start, (host.peer.id, host.hold, host.head))
        elif verb == "pause":
            host = self._who(words[0], it)
            world.pause(host)
            world.at(world.now + float(words[1]), world.resume, (host,))
        elif verb in ("cut", "mute"):
            split = words.index("from")
            near = [self._who(name, it).peer.id for name in words[:split]]
            far = words[split + 1 :]
            others = [h.peer.id for h in world.live()] if far == ["all"] else [self._who(n, it).peer.id for n in far]
            pairs = {(a, b) for a in near for b in others if a not in (b,) and b not in near}
            if verb == "cut":
                pairs |= {(b, a) for a, b in pairs}
            world.network.block(pairs)
            world.remark(f"{verb}: {' '.join(near)} from {' '.join(b for b in others if b not in near)}")
        elif verb == "heal":
            world.network.heal(set(world.network.blocked))
            world.remark("heal")
        elif verb == "hang":
            self._who(words[0], it).hung = True
            world.remark(f"hang: compute of {self._who(words[0], it).peer}")
        elif verb == "lose":
            host = self._who(words[0], it)
            stage = int(words[1]) if len(words) > 1 else -1
            if stage >= 0:
                world.remark(f"{host.peer} is out of memory on stage {stage}")
                world.lose_stage(host, stage, "out of memory")
            else:
                world.remark(f"compute of {host.peer} dies")
                world.lose_compute(host, "killed")
        elif verb == "poison":
            step, microbatch, visit, tries = (int(word) for word in words)
            world.poisons.append(Poison(step, microbatch, visit, True, tries))
        elif verb == "reset":
            host = self._who(words[0], it)
            for other in world.live():
                for source, target in ((host, other), (other, host)):
                    link = source.links.get(target.peer)
                    if link is not None:
                        world.network.break_link(link, target.peer, 0.1, "reset")
        elif verb == "forgetful":
            world.directory.miss = float(words[0])
        else:
            raise ValueError(f"cannot do {action!r}")

    # -- watching

    def _on_send(self, host: Host, effect: Send) -> None:
        self._meet(host, effect.message, True)

    def _on_receive(self, host: Host, message: Message) -> None:
        self._meet(host, message, False)

    def _meet(self, host: Host, message: Message, sending: bool) -> None:
        kind = type(message).__name__
        for watch in self.watches:
            if watch.kind != kind or watch.sending != sending or self.world.ledger.top_commit() < watch.from_commit:
                continue
            if watch.who != "anyone" and self._who(watch.who, host) is not host:
                continue
            watch.left -= 1
            if watch.left:
                continue
            self.watches.remove(watch)
            self.world.remark(f"{host.peer} {'is about to' if watch.before else 'did'} "
                              f"{'send' if sending else 'receive'} {kind}: {watch.action}")  # fmt: skip
            if watch.before:
                self._do(watch.action, host)
            else:
                self.world.at(self.world.now, self._do, (watch.action, host))
            return

    def _say(self, text: str) -> None:
        self.story.append(f"{self.world.now:6.1f}  {text}")

    def _lineage(self, lineage: str) -> str:
        return self.lineages.setdefault(lineage, "ABCDEFGHIJ"[len(self.lineages)])

    def _on_commit(self, lineage: str, version: Version, skipped: bool) -> None:
        if version.step:
            made = f"{version.attempt.view}.{version.attempt.n}"
            how = " (skipped)" if skipped else ""
            self._say(f"{self._lineage(lineage)} commits step {version.step} as attempt {made}{how}")
        for step, delay, action in [item for item in self.on_commits if item[0] <= version.step]:
            self.on_commits.remove((step, delay, action))
            self.world.at(self.world.now + delay, self._do, (action, None))

    def _on_view(self, host: Host, view: View) -> None:
        held = " ".join(f"{stage}:{'+'.join(map(str, group)) or '-'}" for stage, group in enumerate(view.holders))
        voters = " ".join(map(str, view.voters))
        name = self._lineage(view.lineage.id)
        self._say(f"{name} view {view.number}, led by {view.leader}: {held}; voters {voters}; {view.reason}")

    def _on_installed(self, host: Host, effect: Install) -> None:
        plan = effect.plan
        donors = " and ".join(f"{donor.peer}'s stage {donor.stage}" for donor in plan.donors)
        self._say(f"{host.peer} has stage {plan.stage} at step {effect.base.step}: {plan.rung.value} {donors}".rstrip())

    def _on_remark(self, text: str) -> None:
        self._say(f"*** {text}")


def perform(text: str) -> tuple[Play, str]:
    """Play the script; the play is returned for a look at its world."""
    play = Play(text)
    return play, play.perform()
