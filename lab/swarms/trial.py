"""A small swarm for a measurement: prepared, started, waited for. Shared by the benchmarks and the swarm's tests."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ftnode.lab.swarms.swarm import NODE, Process, Swarm
from ftnode.lab.traces.story import Story
from ftnode.node.cli.manifest import manifest_text
from ftnode.node.data.corpus import corpus_facts
from ftnode.node.home.waiting import spoken
from ftnode.node.manifests.presets import adapt, preset
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

LEASE_SECONDS = 5.0
MINORITY_WAIT_SECONDS = 5.0
START_SECONDS = 180.0
"""Until the first commit; a dozen processes import torch on a small machine."""
POLL_SECONDS = 0.05
FOREVER = 1_000_000
"""Steps that no trial comes to the end of."""


@dataclass
class Trial:
    """A swarm, its story, and waiting with a deadline and a name."""

    swarm: Swarm
    story: Story
    expected_dead: set[str] = field(default_factory=set)

    def volunteer(
        self, name: str, *, hold: int = 1, options: Sequence[str] = (), link: str = "", program: Sequence[str] = NODE,
        environment: Mapping[str, str] | None = None,
    ) -> Process:  # fmt: skip
        process = self.swarm.start_volunteer(
            name, hold=hold, options=options, link=link, program=program, environment=environment
        )
        self.story.follow(name, process.trace)
        return process

    def kill(self, name: str) -> float:
        """SIGKILL one; the monotonic time of it."""
        self.expected_dead.add(name)
        return self.swarm.kill(name)

    def wait(self, what: str, condition: Callable[[Story], bool], seconds: float = START_SECONDS) -> None:
        """Until `condition` holds; stderr says what for when that takes long. Raises UserError: 75 when it does not in
        time, 70 when a node ends by itself."""
        with spoken(what):
            self._wait(what, condition, seconds)

    def _wait(self, what: str, condition: Callable[[Story], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.story.read()
            if condition(self.story):
                return
            for process in self.swarm.processes.values():
                if not process.alive and process.name not in self.expected_dead:
                    raise UserError(f"{process.name} ended by itself: {process.tail() or 'it said nothing'}", 70)
            if time.monotonic() > deadline:
                raise UserError(f"waited {seconds:.0f} s for {what}; {self.where()}", 75)
            time.sleep(POLL_SECONDS)

    def wait_for_step(self, step: int, seconds: float = START_SECONDS) -> None:
        self.wait(f"step {step}", lambda story: story.committed >= step, seconds)

    def where(self) -> str:
        """Where the run stands, for a person who waits in vain."""
        notes = [f"{told.node}: {told.record['kind']}: {told.record['text']}" for told in self.story.notes[-5:]]
        return "; ".join([f"{self.story.committed} steps are committed", *notes])


def trial_manifest(
    start: Manifest,
    *,
    steps: int | None = None,
    stages: int | None = None,
    data: Path | None = None,
    seed: int | None = None,
    replicas: int = 1,
) -> Manifest:
    """`start` with the short lease of a machine of one's own; newcomers stand by unless `replicas` says otherwise."""
    return adapt(
        start,
        **asdict(corpus_facts(data, start.model.context)),
        name="trial",
        steps=steps,
        stages=stages,
        seed=seed,
        lease_seconds=LEASE_SECONDS,
        minority_wait_seconds=MINORITY_WAIT_SECONDS,
        replicas=replicas,
    )


def small_manifest(data: Path | None, stages: int, steps: int = FOREVER, replicas: int = 1) -> Manifest:
    """Steps of some tens of milliseconds. Nobody validates, which would stand between steps."""
    tiny = preset("tiny")
    start = replace(
        tiny,
        model=replace(tiny.model, dim=64, heads=2, layers=stages, context=64, hidden=128),
        batch=replace(tiny.batch, microbatches=6, sequences=4),
        evaluation=replace(tiny.evaluation, every=0, microbatches=2),
    )
    return trial_manifest(start, steps=steps, stages=stages, data=data, replicas=replicas)


@contextmanager
def open_trial(
    manifest: Manifest,
    directory: Path | None = None,
    data: Path | None = None,
    *,
    hash_every: int = 0,
    options: tuple[str, ...] = (),
) -> Iterator[Trial]:
    """A running meeting point and nobody else yet; all is ended on leaving. Without `directory` nothing is kept.
    `hash_every`, `options`: see Swarm."""
    with tempfile.TemporaryDirectory(prefix="ftnode-lab-") as temporary:
        folder = directory or Path(temporary)
        path = folder / "manifest.toml"
        path.write_text(manifest_text(manifest), encoding="utf-8")
        with Swarm(folder, path, data=data, hash_every=hash_every, options=options) as swarm:
            swarm.start_bootstrap()
            yield Trial(swarm, Story())
