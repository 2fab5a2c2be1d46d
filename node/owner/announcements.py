"""What a node tells its owner: one line per thing that changed, for people or as JSON."""

from __future__ import annotations

import errno
import io
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ftnode.protocol.wire.frames import clean_reason
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.types import Rung

if TYPE_CHECKING:
    from ftnode.node.owner.terminal import Terminal

log = logging.getLogger("ftnode.notes")
MEBIBYTE = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PLAIN_KINDS: Final = {
    "announcement": "author", "blocked": "asleep", "found": "start", "gone": "members", "lineage": "branch",
    "nonsense": "bad peer", "poisoned": "spoilt", "rebuild": "weights", "rebuilt": "weights", "stand": "step",
    "view": "holders", "void": "alive", "yield": "branch", "back": "branch", "fork": "branch",
}  # fmt: skip
"""What people read in the place of kinds that are words of the protocol. Programs read the kinds (--json)."""
STAGES: Final = "stages"
NUMBERS: Final = frozenset(
    {"base", "held_seconds", "recoveries", "share", "stage", "step", "steps", "view", "visits"}
)  # fmt: skip
"""Fields that are numbers, as STAGES is a list of them. Decisions of the core have them as text."""


class Speaking:
    """Prints to standard output, above the live line of a terminal that has one, and writes to the log. Lines that
    repeat themselves are said once."""

    def __init__(self, as_json: bool, terminal: Terminal | None = None) -> None:
        self.as_json, self.terminal = as_json, terminal
        self.last_trouble = ""
        self._learnt: set[str] = set()
        """Stages that came from another holder since the holders were last others. A learner of fast steps fetches its
        stage anew for each of them."""
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="replace")  # a terminal that knows ASCII alone must not end the node

    def say(self, kind: str, text: str, **fields: str | float) -> None:
        """One line of printable characters, whatever `text` has: words of other programs and of strangers come
        through here, and must not steer a terminal. Programs read `fields`, and numbers in them as numbers."""
        kind, text = clean_reason(kind), clean_reason(" ".join(text.split()))
        log.info("%s: %s", kind, text)
        if self.as_json:
            told = {name: for_programs(name, value) for name, value in fields.items()}
            line = json.dumps({"time": time.time(), "kind": kind, "text": text, **told})
        else:
            line = f"{time.strftime('%H:%M:%S')}  {PLAIN_KINDS.get(kind, kind):<10} {text}"
        try:
            if self.terminal is not None:
                self.terminal.say(line)
            else:
                print(line, file=sys.stdout, flush=True)
        except OSError as error:
            self._failed(error)

    def show(self, line: str) -> None:
        """The live line from now on, where there is one."""
        try:
            if self.terminal is not None:
                self.terminal.show(clean_reason(line) if line else "")
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """A file on a full disk may find room for the next line. Anything else reads nothing any more."""
        if error.errno not in FULL:
            log.info("nobody reads standard output any more")
            self.terminal = None
            sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115 - stays open for the rest of the process

    def note(self, note: Note) -> None:
        """A decision of the core. Its reason is said once while it stays the same (the core sees to that)."""
        if note.kind == "directory":
            self.trouble(note.text)
            return
        fields = dict(note.fields)
        if note.kind == "view":
            self._learnt.clear()
        if not self.as_json and note.kind == "rebuilt" and fields.get("rung") == Rung.REPLICA.value:
            if fields.get("stages", "") in self._learnt:
                log.info("%s: %s", note.kind, note.text)
                return
            self._learnt.add(fields.get("stages", ""))
        self.say(note.kind, note.text, **fields)

    def trouble(self, reason: str) -> None:
        """The directory does not answer."""
        if reason != self.last_trouble:
            self.last_trouble = reason
            self.say("directory", reason)


def for_programs(name: str, value: str | float) -> object:
    """A field as JSON has it; null for a number that is not known."""
    if isinstance(value, str) and name == STAGES:
        return [int(stage) for stage in value.split(",") if stage]
    if isinstance(value, str) and name in NUMBERS:
        return json.loads(value) if value else None
    return value


def stage_bytes(ready: Mapping[str, Any], live_activations: int) -> int:
    """Memory that one block stage needs: weights, gradient and moments, and the live activations."""
    return int(ready["stage_bytes"]) + live_activations * int(ready["activation_bytes"])


def head_bytes(ready: Mapping[str, Any]) -> int:
    """Memory that the head needs beside block stages: its state, and what it takes more than they to compute with."""
    return int(ready["head_bytes"]) + int(ready["head_working_bytes"])


def capacity_of(
    ready: Mapping[str, Any], hold: int, live_activations: int, copies_bytes: tuple[int, int] = (0, 0),
    head: bool = False,
) -> int:  # fmt: skip
    """How many stages fit into the free memory, `hold` at most, beside the head where `head` says that it may come.
    `copies_bytes` (of the manifest): copies of others' stages, per stage held and once."""
    needed = stage_bytes(ready, live_activations)
    if needed <= 0:
        return hold
    each, once = copies_bytes
    room = int(ready["memory_free"]) - once - (head_bytes(ready) if head else 0)
    return max(0, min(hold, room // (needed + each)))


def activations_at_once(
    devices: Sequence[Mapping[str, Any]], live_activations: int, copies_bytes: tuple[int, int]
) -> int:
    """How many activations beside a stage each device has memory for that has any for a stage: those that the manifest
    says, or fewer, so that a stage fits."""
    found = [live_activations]
    for ready in devices:
        counts = range(live_activations, 0, -1)
        found += [count for count in counts if capacity_of(ready, 1, count, copies_bytes)][:1]
    return min(found)


def live_here(at_once: int, live_activations: int) -> int:
    """How many of them may be kept for their backward, as ComputeReady says it: where memory is short, the one that is
    computed again takes its place."""
    return -1 if at_once >= live_activations else at_once - 1


def activations_text(kept: int) -> str:
    return f"has memory for {kept} activations, and computes the others again for their backward passes"


def head_fits(ready: Mapping[str, Any], live_activations: int, copies_bytes: tuple[int, int]) -> tuple[bool, str]:
    """Whether there is room for the head beside one stage, and if not, why. A head that comes later and does not fit
    would cost what is held by then."""
    if capacity_of(ready, 1, live_activations, copies_bytes, head=True):
        return True, ""
    wanted = (head_bytes(ready) + stage_bytes(ready, live_activations) + sum(copies_bytes)) / MEBIBYTE
    free = int(ready["memory_free"]) / MEBIBYTE
    return False, f"the head and one stage need {wanted:.0f} MiB, and {free:.0f} MiB are free"


def room_on(
    devices: Sequence[Mapping[str, Any]], hold: int, live_activations: int, copies_bytes: tuple[int, int], head: bool
) -> tuple[tuple[int, ...], int | None, str]:
    """How many stages fit on each device; where the head comes if `head` says that it may, where it takes the least
    room from others; and, when it fits nowhere, why."""
    rooms = [capacity_of(ready, hold, live_activations, copies_bytes) for ready in devices]
    answers = [head_fits(ready, live_activations, copies_bytes) for ready in devices]
    fitting = [number for number, (fits, _) in enumerate(answers) if fits]
    if not head:
        return tuple(rooms), None, ""
    if not fitting:
        return tuple(rooms), None, max(zip(devices, answers), key=lambda each: int(each[0]["memory_free"]))[1][1]
    beside = [capacity_of(ready, hold, live_activations, copies_bytes, head=True) for ready in devices]
    place = min(fitting, key=lambda number: (rooms[number] - beside[number], number))
    rooms[place] = min(rooms[place], hold, beside[place] + 1)  # as many blocks, or one less and the head
    return tuple(rooms), place, ""


def describe_compute(
    devices: Sequence[Mapping[str, Any]], live_activations: int, copies_bytes: tuple[int, int], head: bool, why: str
) -> list[str]:
    """What was measured, before a stage is claimed: a line for each of `devices`, and what holds for all."""
    lines = []
    for ready in devices:
        needed = stage_bytes(ready, live_activations)
        speed = float(ready["tokens_per_second"])
        threads = "1 thread" if ready["threads"] == 1 else f"{ready['threads']} threads"
        compiled = ", compiled blocks" if ready.get("compiled") else ""
        lines.append(
            f"device {ready['device']}, {threads}, {ready['precision']}{compiled}; "
            f"a stage needs {needed / MEBIBYTE:.0f} MiB, "
            f"{int(ready['memory_free']) / MEBIBYTE:.0f} MiB are free; about {speed:,.0f} tokens/s per stage"
        )
    reasons = {str(ready["not_compiled"]) for ready in devices if ready.get("not_compiled")}
    lines += [f"blocks are not compiled: {reason}" for reason in sorted(reasons)]
    lines.append(f"copies of others' stages take at most {sum(copies_bytes) / MEBIBYTE:.1f} MiB with one stage held")
    if not head:
        lines.append(f"cannot hold the head: {why}")
    return lines
