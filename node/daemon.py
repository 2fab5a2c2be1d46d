"""`ftnode join`, put together: identity, p2pd, compute, directory, transport, and the driver between them.

Reads top to bottom as the life of a node: `run` takes the identity, `_live` starts the processes, `Node` wires the
adapters to the driver, and leaving happens in the reverse order.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from importlib.metadata import version
from logging.handlers import RotatingFileHandler
from random import Random
from typing import Any, Final

import trio

from ftnode.node.addresses import full_addresses, parse_peers, remember_peers
from ftnode.node.arena import Arena
from ftnode.node.compute import ComputeProcess
from ftnode.node.compute_config import ComputeConfig
from ftnode.node.configuration import JoinConfig, Running, forget_running, note_running
from ftnode.node.directory import Membership, SwarmDirectory, lifetime_of, read_statements
from ftnode.node.directory_link import DirectoryDown
from ftnode.node.directory_records import RUNS_KEY, RunNotice
from ftnode.node.driver import Driver
from ftnode.node.gradient_memory import GradientMemory
from ftnode.node.identity import Identity, take_identity
from ftnode.node.keeper import Keeper
from ftnode.node.knock import KNOCK_PROTOCOL, knock_handler
from ftnode.node.p2pd import P2pd
from ftnode.node.reachability import Reach, Reachability
from ftnode.node.reduction import Reductions
from ftnode.node.reduction_wire import REDUCE_PROTOCOL
from ftnode.node.reports import Speaking, capacity_of, describe_compute
from ftnode.node.snapshot import snapshot
from ftnode.node.state_donor import StateDonor
from ftnode.node.state_reading import try_to_dump
from ftnode.node.state_shape import gradient_numbers, shape_of
from ftnode.node.state_source import Borrower
from ftnode.node.state_transfer import Installer
from ftnode.node.status import STATUS_PROTOCOL, SwarmStatus, status_handler
from ftnode.node.trace import TraceWriter, new_trace_path
from ftnode.node.transport import Transport
from ftnode.protocol.errors import UserError
from ftnode.protocol.events import ComputeReady, Directory, DirectoryLost, Leave, Moved
from ftnode.protocol.manifest import Manifest, settings
from ftnode.protocol.participant import Participant
from ftnode.protocol.types import Peer, Version
from ftnode.protocol.wire import STATE_PROTOCOL

log = logging.getLogger(__name__)

LOG_FORMAT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"
NONCE_BITS: Final = 48
LOG_BYTES_MAX: Final = 1 << 26
"""Of node.log; then it begins anew, and the one before is kept."""
GOODBYE_SECONDS: Final = 0.3
"""After leaving, for the last messages to reach the wire."""


def run(config: JoinConfig) -> int:
    """Be a node until Ctrl-C, SIGTERM or an error. 0 after a clean leave. Raises UserError."""
    try:
        config.log_directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot create {config.log_directory}: {error.strerror}; choose another --log-dir", 73
        ) from None
    log_file = RotatingFileHandler(config.log_directory / "node.log", maxBytes=LOG_BYTES_MAX, backupCount=1)
    logging.basicConfig(handlers=[log_file], level=logging.INFO, format=LOG_FORMAT)
    identity = take_identity(config.home)
    try:
        failure = trio.run(_live, config, identity)
    finally:
        forget_running(config.home, identity.peer_id)
        identity.release()
    if failure is not None:
        raise failure
    return 0


async def _live(config: JoinConfig, identity: Identity) -> UserError | None:
    """Errors for the user are returned, since nurseries would wrap them."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            try:
                p2pd = await P2pd.start(
                    nursery, identity.path, listen=config.listen, announce=config.announce,
                    log_path=config.log_directory / "p2pd.log",
                )  # fmt: skip
            except UserError as error:
                nursery.cancel_scope.cancel()
                return error
            try:
                node = Node(config, identity, p2pd, await p2pd.addresses())
                failure = await node.live(nursery, signals)
            finally:
                p2pd.close()
            nursery.cancel_scope.cancel()
    return failure


class Node:
    """The adapters of one node around its driver."""

    def __init__(self, config: JoinConfig, identity: Identity, p2pd: P2pd, addresses: tuple[str, ...]) -> None:
        manifest = config.manifest
        self.config, self.p2pd, self.addresses = config, p2pd, addresses
        self.me = Peer(identity.peer_id, secrets.randbits(NONCE_BITS))
        self.speaking = Speaking(config.json)
        self.settings = settings(manifest)
        self.device = config.device
        self.failure: UserError | None = None
        self._met_somebody = False
        self._last_trouble = ""
        self._nursery: trio.Nursery | None = None
        self._done = trio.Event()
        self._leaving = False
        seed = secrets.randbits(NONCE_BITS)
        self.arena = Arena(manifest.boundary_bytes, manifest.slots(config.hold))
        self.trace = TraceWriter(
            new_trace_path(config.log_directory), self._trace_header(seed), lambda why: self.speaking.say("trace", why)
        )
        computing = compute_config(config)
        self.gradients = GradientMemory(gradient_numbers(computing), computing.number_bytes)
        self.compute = ComputeProcess(
            computing, self.arena, self._on_compute_ready, self._on_compute_lost,
            config.log_directory / "compute.log", self.settings.task_seconds, self.gradients,
        )  # fmt: skip
        self.transport = Transport(
            p2pd, self.arena, manifest.run_id, self.me.nonce, manifest.boundary_bytes, self._deliver, self._on_refusal,
            self._may_send_tensors,
        )  # fmt: skip
        self.directory = SwarmDirectory(
            Membership(manifest.run_id, manifest.run.name, self.me, lifetime_of(self.settings.lease_seconds)),
            p2pd, identity.sign, parse_peers(config.peers), self._on_directory,
            log_path=config.log_directory / "directory.log", remember=self._remember,
        )  # fmt: skip
        self.participant = Participant(self.me, self.settings, Random(seed), addresses=addresses, hold=config.hold)
        self.driver = Driver(
            self.participant, self.transport, self.compute, self.directory, self.arena, self.trace, self.speaking.note
        )
        self.reductions = Reductions(
            manifest.run_id, self.me, self.gradients, self.compute, self.transport, self._may_borrow
        )
        self.driver.tasks.reductions = self.reductions
        dumps = config.log_directory if config.dump_rebuilds else None
        self.donor = StateDonor(
            manifest.run_id, self.arena, self.compute, self.transport.strike, self.driver.record_export, dumps,
            dumped_parts=("weights",) if self.settings.optimiser_state == "fresh" else ("weights", "all"),
            copies=self.driver.copies, allowed=self._may_borrow, held=self.participant.holder.versions.get,
            history=self.participant.chronicle.after,
        )  # fmt: skip
        self.reachability = Reachability(p2pd, parse_peers(config.peers), self._on_reach)
        borrower = Borrower(
            self.me, self.settings, self.arena, self.transport, self.donor, shape_of(self.compute.config)
        )
        self.driver.donor = self.donor
        self.driver.on_last = self._dump_last if config.dump_rebuilds else None
        self.driver.keeper = Keeper(manifest.run_id, borrower)
        self.driver.installer = Installer(
            manifest.run_id, self.settings, self.arena, self.compute, borrower,
            self.participant.chronicle.known_up_to, dumps,
        )  # fmt: skip

    def _trace_header(self, seed: int) -> dict[str, Any]:
        return {
            "peer": list(self.me),
            "run": self.config.manifest.run_id,
            "settings": asdict(self.settings),
            "precision": self.config.manifest.model.precision,
            "chance": seed,
            "addresses": list(self.addresses),
            "hold": self.config.hold,
            "wall": time.time(),
            "version": version("ftnode"),
        }

    async def live(self, nursery: trio.Nursery, signals: AsyncIterator[int]) -> UserError | None:
        """Serve until left or failed."""
        config, self._nursery = self.config, nursery
        nursery.start_soon(self.compute.run)
        self.reductions.begin(nursery)
        if self.settings.replicas > 1:
            nursery.start_soon(self.reductions.prepare)
        await self.transport.start(nursery)
        await self.p2pd.serve(STATE_PROTOCOL, self.donor.serve)
        await self.p2pd.serve(REDUCE_PROTOCOL, self.reductions.serve)
        await self.p2pd.serve(STATUS_PROTOCOL, status_handler(self.status))
        await self.p2pd.serve(KNOCK_PROTOCOL, knock_handler(self.p2pd))
        self._note_running()
        self.speaking.say("join", f"{self.me.id} joins {config.manifest.run.name} ({config.manifest.run_id[:8]})",
                          peer=self.me.id, log=str(config.log_directory))  # fmt: skip
        self.speaking.say("look", f"ftnode status --watch 2 --home {config.home}")
        self.speaking.say("log", f"{config.log_directory}")
        nursery.start_soon(self.directory.run)
        nursery.start_soon(self.reachability.run)
        nursery.start_soon(self._listen_to_owner, signals)
        nursery.start_soon(self._give_up_alone)
        nursery.start_soon(self._watch_p2pd)
        nursery.start_soon(self._drive, nursery)
        await self._done.wait()
        self.trace.close(time.monotonic(), str(self.failure or "left"))
        self.speaking.say("left", str(self.failure or "left the swarm"))
        return self.failure

    def _note_running(self) -> None:
        """Who watches with `ftnode status` cannot dial through a relay, and asks remembered peers then."""
        direct = [address for address in self.addresses if "/p2p-circuit" not in address]
        full = full_addresses(self.me.id, direct)
        run = self.config.manifest.run_id
        note_running(self.config.home, Running(os.getpid(), self.me.id, run, full, self._leaving))

    async def _drive(self, nursery: trio.Nursery) -> None:
        await self.driver.run(nursery)
        self.directory.withdraw()
        await trio.sleep(GOODBYE_SECONDS)
        self._done.set()

    def _dump_last(self, stage: int, version: Version) -> None:
        """Write the weights of the run's end to a file."""
        path = self.config.log_directory / f"last-{stage}-{version.step}.weights"
        assert self._nursery is not None
        self._nursery.start_soon(try_to_dump, self.compute, self.arena, stage, version, path)

    def _fail(self, failure: UserError) -> None:
        self.failure = self.failure or failure
        self._done.set()

    # -- what can end it

    async def _listen_to_owner(self, signals: AsyncIterator[int]) -> None:
        """The first signal asks to leave, a second one ends at once."""
        async for number in signals:
            if self._leaving:
                self._done.set()
                return
            self._leaving = True
            self._note_running()
            self.speaking.say("leaving", "leaving; once more ends at once")
            self.driver.deliver(Leave(f"asked by {signal.Signals(number).name}"))

    async def _watch_p2pd(self) -> None:
        await self.p2pd.died.wait()
        self._fail(UserError(f"p2pd died; see {self.config.log_directory / 'p2pd.log'} and join again", 69))

    async def _give_up_alone(self) -> None:
        """Nobody to start from for --timeout is an error that a person can mend."""
        await trio.sleep(self.config.timeout)
        if not self._met_somebody:
            reasons = " ".join(self._last_trouble.split()) or "no answer"
            cause = f"no peer answered within {self.config.timeout:g} s ({reasons})"
            self._fail(UserError(f"{cause}; check the address, that the peer runs, and firewalls in between", 69))

    # -- what adapters tell

    def _deliver(self, event: Any) -> None:
        self.driver.deliver(event)

    def _may_send_tensors(self, peer: Peer) -> bool:
        """Members of our view may, and while we are in none, we cannot tell."""
        core = self.participant
        return core.view is None or not core.member or peer in core.members

    def _may_borrow(self, peer_id: str) -> bool:
        """As above; outside of a view we have but copies to lend, to members of a view that we may
        not know. Learners borrow as members do."""
        core = self.participant
        begun = core.holder.begin
        learners = () if begun is None else (peer for _, peer in begun.learners)
        return not core.member or any(peer.id == peer_id for peer in (*core.members, *learners))

    def _on_refusal(self, peer: Peer, reason: str) -> None:
        self.speaking.say("refused", f"{peer} refuses us: {reason}", peer=peer.id)

    def _on_reach(self, reach: Reach) -> None:
        self.speaking.say("reachable", str(reach), reach=reach.kind)
        if reach.addresses != self.addresses:
            self.addresses = reach.addresses
            self.transport.move(reach.addresses)
            self.driver.deliver(Moved(reach.addresses))
            self._note_running()

    def _remember(self, addresses: tuple[str, ...]) -> None:
        remember_peers(self.config.home, addresses)

    def _on_directory(self, event: Directory | DirectoryLost) -> None:
        if isinstance(event, DirectoryLost):
            self._last_trouble = event.reason
        elif not self._met_somebody:
            self._met_somebody = True
            remember_peers(self.config.home, self.config.peers)
            if not event.certificates and not event.presences:
                self._check_namesakes(event)
                return
        self.driver.deliver(event)

    def _check_namesakes(self, event: Directory) -> None:
        """Nobody of this run is here. If a run of the same name is, somebody has edited the manifest."""
        assert self._nursery is not None
        self._nursery.start_soon(self._look_for_namesakes, event)

    async def _look_for_namesakes(self, event: Directory) -> None:
        manifest = self.config.manifest
        try:
            notices = await read_statements(self.directory.link, RUNS_KEY, int(time.time() * 1000))
        except DirectoryDown as error:
            log.info("no look at other runs: %s", error)
            notices = []
        named = {
            notice.run
            for notice in notices
            if isinstance(notice.body, RunNotice) and notice.body.name == manifest.run.name
        }
        if named and manifest.run_id not in named:
            theirs = min(named)
            self._fail(
                UserError(
                    f"manifest hash differs: the swarm's run {manifest.run.name!r} is {theirs[:8]}, this file is "
                    f"{manifest.run_id[:8]}; get the swarm's file, or give yours another run.name to start a new run",
                    78,
                )
            )
        else:
            self.driver.deliver(event)

    def _on_compute_ready(self, ready: dict[str, Any]) -> None:
        self.device = str(ready["device"])
        copies = self.config.manifest.copies_bytes
        fitting = capacity_of(ready, self.config.hold, self.settings.live_activations, copies)
        head, why = may_hold_head(self.config.manifest, ready)
        lines = describe_compute(ready, fitting, self.config.hold, self.settings.live_activations, copies, head, why)
        for line in lines:
            self.speaking.say("compute", line)
        self.driver.deliver(ComputeReady(fitting, head, float(ready["tokens_per_second"])))

    def _on_compute_lost(self, reason: str, out_of_memory_stage: int) -> None:
        self.speaking.say("compute", f"the compute process is lost: {reason}")
        self.driver.compute_lost(reason, out_of_memory_stage)
        if self.compute.refusal:  # it would say so again and again
            device = self.config.device
            self._fail(UserError(f"cannot compute on {device}: {self.compute.refusal}; choose another --device", 69))

    def status(self) -> SwarmStatus:
        """For watchers."""
        return snapshot(self.participant, self.config.manifest, self.device, time.monotonic())


def may_hold_head(manifest: Manifest, ready: dict[str, Any]) -> tuple[bool, str]:
    """The head draws the batches, so its holder must have the run's corpus."""
    corpus = str(ready["corpus"])
    if str(ready["device"]).startswith("paced") or (corpus and corpus == manifest.data.sha256):
        return True, ""
    return False, str(ready["corpus_reason"] or f"this corpus is {corpus[:8]}, the run's is {manifest.data.sha256[:8]}")


def compute_config(config: JoinConfig) -> ComputeConfig:
    """What the compute process is told, from the manifest and this node's options."""
    manifest = config.manifest
    model, optimiser, pipeline = manifest.model, manifest.optimiser, manifest.pipeline
    return ComputeConfig(
        dim=model.dim, heads=model.heads, layers=model.layers, context=model.context, hidden=model.hidden,
        stages=pipeline.stages, microbatches=manifest.batch.microbatches, sequences=manifest.batch.sequences,
        steps=manifest.run.steps, learning_rate=optimiser.learning_rate, slot_bytes=manifest.boundary_bytes,
        slots=manifest.slots(config.hold), vocabulary=model.vocabulary, rope_theta=model.rope_theta,
        norm_eps=model.norm_eps, seed=manifest.run.seed, beta1=optimiser.betas[0], beta2=optimiser.betas[1],
        eps=optimiser.epsilon, weight_decay=optimiser.weight_decay, warmup_steps=optimiser.warmup_steps,
        decay=optimiser.decay, minimum_factor=optimiser.minimum_factor, clip=optimiser.clip,
        precision=model.precision, boundary_dtype=manifest.boundary, data=str(config.data or ""),
        corpus=manifest.data.sha256, device=config.device, threads=config.threads,
        live_activations=pipeline.live_activations, backend=config.compute_backend,
        forward_seconds=config.forward_seconds, backward_seconds=config.backward_seconds,
    )  # fmt: skip
