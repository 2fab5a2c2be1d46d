"""A status for people: a table on a terminal, lines elsewhere. Text from peers is shown without control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftnode.node.home.duration import duration
from ftnode.node.owner.limits import rate_text
from ftnode.node.watch.stage_summary import LEFT_OUT, Circumstances, summarize
from ftnode.node.watch.status import PeerRow, RecoveryRow, StageRow, StageSummary, SwarmStatus
from ftnode.node.watch.told_on import told_line
from ftnode.node.watch.versions import newer
from ftnode.protocol.words.types import Rung, names_of, spoken_stage

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

RUN_COLUMNS = ("run", "id", "state", "step", "loss", "tokens/s", "volunteers", "waits for")
STAGE_COLUMNS = ("stage", "holders", "change", "state", "step", "tokens/s", "queue", "last step", "reason")
HOLDER_COLUMNS = ("stage", "peer", "state", "step", "microbatches", "queue", "tokens/s", "heard")
PEER_COLUMNS = ("peer", "role", "stages", "path", "latency", "version", "heard")
TIME_COLUMNS = ("computed", "sent", "waited", "line full", "line up")
LONG_PEER_COLUMNS = (*PEER_COLUMNS, "address")
DOUBTS_SHOWN = 3
RECOVERIES_SHOWN = 5
RUNS_SHOWN = 8
"""In one line."""
RUN_ID = re.compile("[0-9a-f]{32}")
RUN_ID_SHOWN = 12
NAME_SHOWN = 64
TEXT_SHOWN = 120
REASON_SHOWN = 1000
"""As many letters as a reason has at most."""
ALARM_SHOWN = 300
PLAN_SHOWN = 600
PEER_SHOWN = 6
ALARMING = ("vacant", "rebuilding", LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells that are safe to print. `alarming`: numbers of rows that a person should see first."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    alarming: frozenset[int] = frozenset()

    def lines(self) -> list[str]:
        """As text, the columns aligned."""
        cells = [self.columns, *self.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]

    def without_reasons(self) -> tuple[Table, list[str]]:
        """For a narrow place: without the last column, whose cells become lines of their own."""
        rows = tuple(row[:-1] for row in self.rows)
        reasons = [f"{_spoken(row[0])}: {row[-1]}" for row in self.rows if row[-1]]
        return Table(self.columns[:-1], rows, self.alarming), reasons


class Alarm(str):
    """A line that a person should see first."""


def printable(text: str, most: int = TEXT_SHOWN) -> str:
    """One line without control characters, so that a stranger cannot write escape codes to our terminal."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def wanted_text(run: str) -> str:
    """What a person calls a run: its id, shortened, the beginning of that, or a name."""
    return run[:RUN_ID_SHOWN] if RUN_ID.fullmatch(run) else printable(run, NAME_SHOWN)


def run_text(run: str, name: str) -> str:
    """A run, as people tell it from others."""
    return f"{printable(name, NAME_SHOWN) or 'a run'} ({printable(run[:RUN_ID_SHOWN])})"


def others_told(statuses: Iterable[SwarmStatus]) -> str:
    """The runs in which these speakers, or members that they name, take part; empty for none."""
    told: dict[str, str] = {}
    for status in statuses:
        for run, name in [(status.run, status.name), *((member.run, member.name) for member in status.members)]:
            if run:
                told[run] = told.get(run) or name
    shown = [run_text(run, name) for run, name in sorted(told.items(), key=lambda one: (one[1], one[0]))]
    more = [f"{len(shown) - RUNS_SHOWN} more"] if len(shown) > RUNS_SHOWN else []
    return ", ".join([*shown[:RUNS_SHOWN], *more])


def short_peer(peer: str) -> str:
    return printable(peer[-PEER_SHOWN:]) or "-"


def render(status: SwarmStatus, per_peer: bool = False) -> RenderableType:
    """For rich's console or its live display, what is alarming in red. Tables are our own lines, cut at the terminal's
    edge: rich's table of a hundred rows takes 70 ms, which a watcher would spend with every look. Reasons are not cut:
    where they do not fit beside the table, they stand below it."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for part in blocks(status, per_peer):
        if isinstance(part, str):
            parts.append(Text(part, "bold red" if isinstance(part, Alarm) else ""))
        elif part.columns == STAGE_COLUMNS:
            parts.append(_Fitting(part))
        else:
            parts.append(_text(part))
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table with reasons, for rich, which alone knows how wide the terminal is."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        from rich.text import Text

        if max(map(len, self.table.lines())) <= options.max_width:
            return [_text(self.table)]
        narrow, reasons = self.table.without_reasons()
        return [_text(narrow), *map(Text, reasons)]


def _text(table: Table) -> RenderableType:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    for number, line in enumerate(table.lines(), -1):
        text.append(line + ("\n" if number + 1 < len(table.rows) else ""), _style(number, table))
    return text


def _style(number: int, table: Table) -> str | None:
    """`number`: -1 for the names of the columns."""
    return "bold" if number < 0 else "bold red" if number in table.alarming else None


def plain_lines(status: SwarmStatus, per_peer: bool = False) -> list[str]:
    """As text, for logs and pipes."""
    return [line for part in blocks(status, per_peer) for line in ([part] if isinstance(part, str) else part.lines())]


def blocks(status: SwarmStatus, per_peer: bool = False) -> list[str | Table]:
    """Lines and tables in the order in which they are shown. `per_peer`: each holder and each peer as well."""
    found: list[str | Table] = [
        *heading_lines(status),
        *(Alarm(f"ALARM: {printable(text, ALARM_SHOWN)}") for text in status.alarms),
    ]
    if status.stages:
        found.append(stage_table(status))
    if per_peer and status.stages:
        found += ["", Table(HOLDER_COLUMNS, tuple(holder_cells(row) for row in status.stages))]
    if per_peer and status.peers:
        rows = tuple((*peer_cells(row), *time_cells(row)) for row in status.peers)
        found += ["", Table((*PEER_COLUMNS, *TIME_COLUMNS), rows), *_limit_lines(status)]
    closing = [*([f"last plan: {printable(status.plan, PLAN_SHOWN)}"] if per_peer and status.plan else [])]
    closing += closing_lines(status)
    return [*found, *([""] if per_peer and closing else []), *closing]


def heading_lines(status: SwarmStatus) -> list[str]:
    who = f"{printable(status.speaker.role)} {short_peer(status.speaker.peer)}"
    if not status.run:
        known = list(_member_lines(status))
        return [f"{who} takes part in no run" + ("" if known else ", and knows no volunteer yet"), *known]
    step = "" if status.validation_step is None else f" at step {status.validation_step}"
    perplexity = "" if status.perplexity is None else f" (perplexity {status.perplexity:.2f})"
    loss = _figures([("loss", status.loss, ".4f"), ("validation", status.validation, ".4f")])
    count = status.volunteers or len({row.peer for row in status.stages if row.peer} | set(status.standbys))
    progress = [
        f"step {status.step:,} of {status.steps:,}",
        loss + (step + perplexity if status.validation is not None else ""),
        _figures([("tokens/s", status.tokens_per_second, ",.0f")]),
        _counted(count, "volunteer", "volunteers") if count else "",
        "" if status.eta_seconds is None else f"{duration(status.eta_seconds)} to go",
        printable(status.state),
    ]
    title = f"{printable(status.name)} ({printable(status.run[:12])}) as {who} sees it"
    first = [title, ", ".join(text for text in progress if text)]
    if status.told_by:
        return [*first, told_line(status)]
    return [
        *first,
        *([f"the run's author says: {status.announcement}"] if status.announcement else []),
        *rollback_lines(status),
        *([_leader_line(status)] if status.view >= 0 else []),
    ]


def rollback_lines(status: SwarmStatus) -> list[str]:
    """What was ordered to be undone, what came of it, and what voters want."""
    ordered, went_to = status.rollback_ordered, status.rollback_went_to
    votes = [
        f"{_counted(row.votes, 'voter wants', 'voters want')} to roll back to step {row.step:,}; {row.needed} are an "
        f"order: ftnode run rollback MANIFEST --by-members --to-step {row.step}"
        for row in status.rollback_votes
    ]
    if ordered is None:
        return votes
    members = status.rollback_by == "members"
    if went_to is not None:
        giver = "most voters'" if members else "its author's"
        went = f"rolled back by {giver} order: to the snapshots of step {went_to:,} (step {ordered:,} was ordered)"
        return [went, *votes]
    why = printable(status.rollback_trouble, REASON_SHOWN)
    why = f", which changes nothing: {why}" if why else ": not done while no disks here have all stages so old"
    giver = "most of its voters order" if members else "its author orders"
    return [f"{giver} to roll back to step {ordered:,} or an earlier one{why}", *votes]


def _leader_line(status: SwarmStatus) -> str:
    branch = printable(status.lineage[:8]) or "-"
    return f"led by {short_peer(status.leader)}; change {status.view} of who holds what, on branch {branch} of the run"


def run_table(statuses: Sequence[SwarmStatus]) -> Table:
    """A line of health for each run."""
    rows = tuple(
        (
            printable(one.name), printable(one.run[:12]), printable(one.state), f"{one.step:,} of {one.steps:,}",
            "-" if one.loss is None else f"{one.loss:.4f}", _speed(one.tokens_per_second), str(one.volunteers),
            _told(one) or printable(one.waiting),
        )
        for one in statuses
    )  # fmt: skip
    return Table(RUN_COLUMNS, rows, frozenset(number for number, one in enumerate(statuses) if one.waiting))


def _told(status: SwarmStatus) -> str:
    """Of a status that did not come from its speaker."""
    return f"a way to a member; this was said {_ago(status.told_age)}" if status.told_by else ""


def stage_table(status: SwarmStatus) -> Table:
    """One row per stage, also of a node that sends no summaries."""
    summaries = _summaries(status)
    alarming = frozenset(number for number, stage in enumerate(summaries) if stage.state in ALARMING)
    return Table(STAGE_COLUMNS, tuple(map(stage_cells, summaries)), alarming)


def _summaries(status: SwarmStatus) -> tuple[StageSummary, ...]:
    around = Circumstances(waiting=status.waiting, finished=status.state == "finished")
    return status.summaries or summarize(status.stages, circumstances=around)


def stage_cells(stage: StageSummary) -> tuple[str, ...]:
    name, epoch, reason = _stage_name(stage.stage), str(stage.epoch), printable(stage.reason)
    if not stage.holders:
        return (name, "0", epoch, printable(stage.state), "", "", "", _ago(stage.step_age), reason)
    return (
        name, str(stage.holders), epoch, printable(stage.state), str(stage.step), _speed(stage.tokens_per_second),
        str(stage.queue), _ago(stage.step_age), reason,
    )  # fmt: skip


def holder_cells(row: StageRow) -> tuple[str, ...]:
    name = _stage_name(row.stage)
    if not row.peer:
        return (name, "nobody", printable(row.state), "", "", "", "", "")
    counts = (str(row.step), str(row.accumulated), str(row.queue), _speed(row.tokens_per_second))
    return (name, short_peer(row.peer), printable(row.state), *counts, f"{row.age:.1f} s")


def peer_cells(row: PeerRow) -> tuple[str, ...]:
    stages = ", ".join(_stage_name(stage) for stage in row.stages[:8]) or "-"
    return (
        short_peer(row.peer), printable(row.role), stages, printable(row.path),
        "-" if row.latency is None else f"{row.latency * 1e3:.1f} ms", printable(row.version) or "-",
        "-" if row.age is None else f"{row.age:.1f} s",
    )  # fmt: skip


def time_cells(row: PeerRow) -> tuple[str, ...]:
    """Of its last minute."""
    shares = (row.computed, row.sent, row.waited, row.line_full)
    up = "-" if row.line_up is None else rate_text(row.line_up)
    return (*("-" if share is None else f"{share:.0%}" for share in shares), up)


def _limit_lines(status: SwarmStatus) -> list[str]:
    """Whom the others wait for."""
    row = next((one for one in status.peers if one.peer == status.limiting_peer), None)
    if row is None:
        return []
    who = short_peer(row.peer)
    if status.limited_by == "line":
        gives = f" gives {rate_text(row.line_up)} up and" if row.line_up is not None else ""
        return [f"the line of {who} limits the run; it{gives} was full for {row.line_full or 0:.0%} of the last minute"]
    return [f"the device of {who} limits the run; it computed for {row.computed or 0:.0%} of the last minute"]


def peer_table(status: SwarmStatus) -> Table:
    """`ftnode peers`: whole PeerIds, and where each can be dialled."""
    rows = []
    for row in status.peers:
        cells = (printable(row.peer), *peer_cells(row)[1:])
        rows.append((*cells, printable(row.addresses[0]) if row.addresses else "-"))
    rows += [
        (printable(member.peer), "member", "-", "-", "-", "-", "-", printable((member.addresses or ("-",))[0]))
        for member in (status.members if not status.run else ())
    ]
    return Table(LONG_PEER_COLUMNS, tuple(rows))


def closing_lines(status: SwarmStatus) -> list[str]:
    lines = []
    if status.standbys:
        lines.append(f"standing by: {', '.join(short_peer(peer) for peer in status.standbys[:16])}")
    if status.copies:
        stages = dict.fromkeys(spoken_stage(copy.stage) for copy in status.copies)
        keepers = _counted(len({copy.peer for copy in status.copies}), "volunteer", "volunteers")
        oldest = min(copy.step for copy in status.copies)
        lines.append(f"copies of {', '.join(stages)} are kept by {keepers}, the oldest of step {oldest:,}")
    if status.skipped_steps:
        lines.append(f"{status.skipped_steps} steps were skipped")
    if status.waiting:
        lines.append(f"waiting for {printable(status.waiting, REASON_SHOWN)}")
    if status.trouble:
        lines.append(f"{short_peer(status.speaker.peer)}, who says this, waits for {printable(status.trouble)}")
    if status.undigested:
        lines.append(_undigested_line(status))
    lines += doubt_lines(status)
    if found := newer(told_versions(status).values()):
        lines.append(str(found))
    if status.state == "finished":
        lines.append(_end(status))
    if status.recoveries:
        lines.append(f"{_counted(len(status.recoveries), 'stage was', 'stages were')} lost and rebuilt so far")
    return lines + [_recovery_line(recovery) for recovery in status.recoveries[-RECOVERIES_SHOWN:]]


def told_versions(status: SwarmStatus) -> dict[str, str]:
    """PeerId → which ftnode it runs, of all that said so."""
    return {row.peer: row.version for row in status.peers} | {status.speaker.peer: status.speaker.version}


def _undigested_line(status: SwarmStatus) -> str:
    messages = _counted(sum(row.count for row in status.undigested), "message", "messages")
    newest = status.undigested[0]
    return (
        f"{short_peer(status.speaker.peer)}, who says this, could not digest {messages} of peers; the newest on "
        f"{printable(newest.protocol)} at {printable(newest.place)}: please report it, with the lines of its log"
    )


def doubt_lines(status: SwarmStatus) -> list[str]:
    """Who was found to lie, and what looked unusual."""
    lines = []
    if status.cut_off:
        parts = _counted(status.cut_off, "part of a sum", "parts of sums")
        lines.append(f"{parts} counted for less than was given, being far larger than the others' parts")
    for case in status.convicted[:DOUBTS_SHOWN]:
        names = ", ".join(map(short_peer, case.signed_by))
        lines.append(
            f"{short_peer(case.peer)} lied in step {case.step:,}, and is asked for nothing any more: "
            f"{printable(case.reason, REASON_SHOWN)} (signed by {names})"
        )
    for doubt in status.doubts[:DOUBTS_SHOWN]:
        what = f"what {short_peer(doubt.peer)} gave to {spoken_stage(doubt.stage)} in step {doubt.step:,}"
        lines.append(f"{what} was {printable(doubt.reason, REASON_SHOWN)}; nobody is accused by that")
    return lines


def _end(status: SwarmStatus) -> str:
    """What there is to do when a run is over."""
    summaries = _summaries(status)
    lost = [stage.stage for stage in summaries if not stage.holders]
    if lost:
        return f"{names_of(lost)} can no longer be had: export works again only if a silent holder is heard again"
    single = sum(stage.holders == 1 for stage in summaries)
    return (
        "its holders keep the model until they are stopped; get it with: ftnode export MANIFEST DIR"
        + (f" ({_counted(single, 'stage has', 'stages have')} a single holder)" if single else "")
    )  # fmt: skip


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _stage_name(stage: int) -> str:
    return "head" if stage == 0 else str(stage)


def _spoken(name: str) -> str:
    """A stage as a sentence has it."""
    return "the head" if name == "head" else f"stage {name}"


def _speed(tokens_per_second: float | None) -> str:
    return "-" if tokens_per_second is None else f"{tokens_per_second:,.0f}"


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{duration(seconds)} ago" if seconds >= 90 else f"{seconds:.1f} s ago"


def _recovery_line(row: RecoveryRow) -> str:
    """One of before the speaker's time has no names and no reason."""
    lost = f"{spoken_stage(row.stage)} was lost" + (f" with {short_peer(row.lost)}" if row.lost else "")
    verb = "rebuilds" if row.seconds is None else "rebuilt"
    if row.rung == Rung.OMIT:
        return f"{lost} at step {row.step}, and left out from then on: nobody could hold it"
    who = short_peer(row.newcomer) if row.newcomer else "a volunteer"
    took = "" if row.seconds is None else f" in {row.seconds:.1f} s"
    fetched = f", {row.bytes_fetched / 1e6:.1f} MB" if row.bytes_fetched else ""
    why = f" ({printable(row.reason, REASON_SHOWN)})" if row.epoch >= 0 else ""
    after = "validation after" if row.validation_before is None else "after"
    losses = _figures([("validation before", row.validation_before, ".3f"), (after, row.validation_after, ".3f")])
    end = f"; {losses}" if losses else ""
    return f"{lost} at step {row.step}; {who} {verb} it from {spoken_rung(row.rung)}{took}{fetched}{why}{end}"


def spoken_rung(rung: str) -> str:
    """Where the weights of a stage come from, for people. Newer versions may know other rungs."""
    return Rung(rung).spoken if rung in {*Rung} else printable(rung)


def _member_lines(status: SwarmStatus) -> Iterable[str]:
    runs: dict[tuple[str, str], int] = {}
    for member in status.members:
        runs[member.run, member.name] = runs.get((member.run, member.name), 0) + 1
    return [
        f"it knows {_counted(count, 'volunteer', 'volunteers')} of {printable(name)} ({printable(run[:12])})"
        for (run, name), count in runs.items()
    ]


def _figures(figures: Sequence[tuple[str, float | None, str]]) -> str:
    return ", ".join(f"{name} {value:{shape}}" for name, value, shape in figures if value is not None)
