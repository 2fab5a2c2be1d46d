"""A status as Prometheus metrics.

docs/how-to/watch-a-run.md lists the names and labels, and docs/how-to/grafana.json uses them.

Pure: a status in, metric families out. What is not known yet is left out rather than told as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ftnode.node.watch.status import SwarmStatus

PREFIX = "ftnode"


class StatusCollector(Collector):
    """Asks `status` for the newest status at every scrape, from the scraper's thread: a status never changes."""

    def __init__(self, status: Callable[[], SwarmStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        return families(self._status())


def families(status: SwarmStatus) -> Iterator[Metric]:
    """All metrics of one status."""
    who = status.speaker
    info = GaugeMetricFamily(
        f"{PREFIX}_info", "Who is asked; always 1.", labels=("peer", "version", "role", "device", "run", "name")
    )
    info.add_metric((who.peer, who.version, who.role, who.device, status.run, status.name), 1)
    yield info
    if status.run:
        yield from _run(status)
        yield from _stages(status)
        yield from _recoveries(status)
        yield from _peers(status)
    else:
        members = GaugeMetricFamily(
            f"{PREFIX}_members", "Members of a run that a meeting point knows.", labels=("run",)
        )
        for run, count in sorted(Counter(member.run for member in status.members).items()):
            members.add_metric((run,), count)
        yield members


def _run(status: SwarmStatus) -> Iterator[Metric]:
    figures: tuple[tuple[str, str, float | None], ...] = (
        ("step", "Last committed step.", status.step),
        ("steps", "Steps of the whole run.", status.steps),
        ("view", "Changes of who holds what, counted: every join and loss is one.", status.view),
        ("loss", "Training loss of the last committed step, nats per token.", status.loss),
        ("validation_loss", "Newest validation loss, nats per token.", status.validation),
        ("validation_perplexity", "e to the newest validation loss.", status.perplexity),
        ("validation_step", "Step of the newest validation.", status.validation_step),
        ("tokens_per_second", "Tokens per second over the newest commits.", status.tokens_per_second),
        ("eta_seconds", "To the last step.", status.eta_seconds),
        ("volunteers", "Holders, learners and those who stand by.", status.volunteers),
        ("standbys", "Those who stand by.", len(status.standbys)),
        ("commit_age_seconds", "Since this node heard of the newest commit.", status.commit_age),
        ("cut_off_parts", "Parts of sums that counted for less than was given.", status.cut_off),
        ("waiting", "1 while the run waits for something.", float(bool(status.waiting))),
    )
    for name, about, value in figures:
        if value is not None:
            yield GaugeMetricFamily(f"{PREFIX}_{name}", about, value=value)
    state = GaugeMetricFamily(f"{PREFIX}_state", "1 for the state that the run is in.", labels=("state",))
    state.add_metric((status.state,), 1)
    yield state


def _stages(status: SwarmStatus) -> Iterator[Metric]:
    figures: tuple[tuple[str, str, Callable[..., float | None]], ...] = (
        ("holders", "Peers that hold the stage.", lambda stage: stage.holders),
        (
            "epoch",
            "Number of the change since which it is with its holders.",
            lambda stage: stage.epoch,
        ),
        ("step", "Last step applied there.", lambda stage: stage.step),
        ("queue", "Microbatches that wait at its holders.", lambda stage: stage.queue),
        ("tokens_per_second", "What its holders can do together.", lambda stage: stage.tokens_per_second),
        ("step_age_seconds", "Since its step was last seen to move.", lambda stage: stage.step_age),
        ("stalled", "1 while there is a reason why it does not get on.", lambda stage: float(bool(stage.reason))),
    )
    for name, about, figure in figures:
        family = GaugeMetricFamily(f"{PREFIX}_stage_{name}", about, labels=("stage",))
        for stage in status.summaries:
            value = figure(stage)
            if value is not None:
                family.add_metric((str(stage.stage),), value)
        yield family


def _recoveries(status: SwarmStatus) -> Iterator[Metric]:
    count = CounterMetricFamily(f"{PREFIX}_recoveries", "Stages that were lost and filled again.", labels=("rung",))
    for rung, number in sorted(Counter(row.rung for row in status.recoveries).items()):
        count.add_metric((rung,), number)
    yield count
    healed = [row.seconds for row in status.recoveries if row.seconds is not None]
    if healed:
        yield GaugeMetricFamily(f"{PREFIX}_recovery_seconds", "How long the newest recovery took.", value=healed[-1])


def _peers(status: SwarmStatus) -> Iterator[Metric]:
    latency = GaugeMetricFamily(
        f"{PREFIX}_peer_latency_seconds", "Between this node and a peer.", labels=("peer", "role", "path")
    )
    paths = GaugeMetricFamily(f"{PREFIX}_peers", "Peers by how this node reaches them.", labels=("path",))
    for peer in status.peers:
        if peer.latency is not None:
            latency.add_metric((peer.peer, peer.role, peer.path), peer.latency)
    for path, number in sorted(Counter(peer.path for peer in status.peers).items()):
        paths.add_metric((path,), number)
    yield latency
    yield paths
    yield from _time(status)


def _time(status: SwarmStatus) -> Iterator[Metric]:
    """What volunteers say of their last minute."""
    shares = GaugeMetricFamily(
        f"{PREFIX}_peer_time_share", "Share of its last minute that a volunteer did so; they may overlap.",
        labels=("peer", "doing"),
    )  # fmt: skip
    rate = GaugeMetricFamily(
        f"{PREFIX}_peer_line_up_bytes_per_second", "What a volunteer's line took while it was full.", labels=("peer",)
    )
    limits = GaugeMetricFamily(
        f"{PREFIX}_limiting", "1 for whom the run waits for most: its line or its device.", labels=("peer", "kind")
    )
    for peer in status.peers:
        told = {"computed": peer.computed, "sent": peer.sent, "waited": peer.waited, "line_full": peer.line_full}
        for doing, share in told.items():
            if share is not None:
                shares.add_metric((peer.peer, doing), share)
        if peer.line_up is not None:
            rate.add_metric((peer.peer,), peer.line_up)
    if status.limiting_peer:
        limits.add_metric((status.limiting_peer, status.limited_by), 1)
    yield from (shares, rate, limits)
