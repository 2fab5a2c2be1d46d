"""A node, put together: p2pd, compute, directory, transport, and the driver between them.

Reads top to bottom as its life: the adapters are wired to the driver, the protocols served, then it waits for its
owner, for news of its adapters, or for what can end it.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import trio

from ftnode.node.compute.group import ComputeGroup
from ftnode.node.compute.orders import compute_configs, devices_text, may_hold_head
from ftnode.node.compute.state_shape import gradient_numbers, shape_of, state_numbers
from ftnode.node.data.shard_wire import DATA_PROTOCOL
from ftnode.node.directory.directory import RecordKeeper, SwarmDirectory, lifetime_of
from ftnode.node.driver.driver import Driver
from ftnode.node.driver.trace import TraceWriter, new_trace_path
from ftnode.node.driver.trace_header import trace_header
from ftnode.node.export.holders import holders_of
from ftnode.node.export.server import STREAMS_MAX, ExportServer
from ftnode.node.export.wire import EXPORT_PROTOCOL
from ftnode.node.home.identity import Identity, verify
from ftnode.node.home.name_card import NameCard, sign_name
from ftnode.node.life.bottom_line import BottomLine
from ftnode.node.life.departure import Departure
from ftnode.node.life.first_contact import believable, nobody_met, unanswered
from ftnode.node.life.hand_over_time import too_slow
from ftnode.node.life.observer import Observer
from ftnode.node.life.snapshot_setup import copies_bytes, known_snapshots, roll_book, saver_for
from ftnode.node.life.undo_requests import UndoRequests
from ftnode.node.links.address_cards import card_signer
from ftnode.node.links.addresses import PeerAddress, full_addresses, parse_peers, remember_peers
from ftnode.node.links.attention import Attention
from ftnode.node.links.dead_connections import SEEN_PROTOCOL, DeadConnections, seen_handler
from ftnode.node.links.dial_back import KNOCK_PROTOCOL, knock_handler
from ftnode.node.links.mover import Mover
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.peer_lines import PeerLines
from ftnode.node.links.punch import PUNCH_PROTOCOL, Puncher
from ftnode.node.links.reachability import Reach, Reachability
from ftnode.node.links.relaying import Relaying
from ftnode.node.links.streams import at_most
from ftnode.node.links.transport import Transport
from ftnode.node.links.undigested import keep_running
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.machine.snapshot_memory import SnapshotMemory
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.manifests.authorship import order_of
from ftnode.node.manifests.book import ManifestBook, not_listed
from ftnode.node.manifests.exchange import MANIFEST_PROTOCOL, manifest_handler
from ftnode.node.manifests.invitation import Invitation
from ftnode.node.manifests.invited_peers import inviting_peers, is_news
from ftnode.node.manifests.namesakes import namesakes_line
from ftnode.node.manifests.spread import Spreading
from ftnode.node.manifests.told_orders import ToldOrders
from ftnode.node.owner.announcements import (
    activations_at_once,
    activations_text,
    describe_compute,
    live_here,
    room_on,
)
from ftnode.node.owner.join_options import JoinConfig, Running
from ftnode.node.owner.left_note import note_left, told
from ftnode.node.owner.limits import ALL_OF_IT
from ftnode.node.owner.offer import offer_of
from ftnode.node.owner.running_note import RunningNote
from ftnode.node.reduction.part_seals import PartSeals
from ftnode.node.reduction.reductions import Reductions
from ftnode.node.reduction.wire import REDUCE_PROTOCOL
from ftnode.node.snapshots.liar_book import LiarBook
from ftnode.node.snapshots.order_book import OrderBook
from ftnode.node.snapshots.roll_book import RollBook
from ftnode.node.watch.alarms import only_here
from ftnode.node.watch.history import HISTORY_PROTOCOL, NodeHistory, history_handler
from ftnode.node.watch.live_line import Part, own_parts, run_parts
from ftnode.node.watch.status import STATUS_PROTOCOL, SwarmStatus, status_handler
from ftnode.node.watch.time_use import Glance
from ftnode.node.weights.copy_fetching import CopyFetcher
from ftnode.node.weights.donor import StateDonor
from ftnode.node.weights.installer import Installer
from ftnode.node.weights.reading import try_to_dump
from ftnode.node.weights.source import Borrower
from ftnode.protocol.manifest.parse import Manifest, settings
from ftnode.protocol.participant import Participant
from ftnode.protocol.picture import Picture
from ftnode.protocol.wire.frames import STATE_PROTOCOL
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.events import (
    ComputeReady,
    Directory,
    DirectoryLost,
    Lied,
    LinkDown,
    Moved,
    Ordered,
    Received,
    Vouched,
)
from ftnode.protocol.words.site import implied_site
from ftnode.protocol.words.types import Peer, Version, names_of, spoken_stage

if TYPE_CHECKING:
    from ftnode.node.data.first_layers import FirstLayers
    from ftnode.node.data.shards import RunShards

ERRORS = "volunteer"

log = logging.getLogger(__name__)

NONCE_BITS: Final = 48
READERS_TOLD: Final = 64
VOUCHERS_SECONDS: Final = 10.0
"""From one look at whose voucher has ended to the next."""
GOODBYE_SECONDS: Final = 0.3
"""After leaving, for the last messages to reach the wire."""


def how_to_look(home: Path) -> str:
    """The command that shows this node's run, to be copied into a shell."""
    return f"ftnode status --watch --home {quote(str(home))}"


class Node:
    """The adapters of one node around its driver."""

    def __init__(
        self, config: JoinConfig, identity: Identity, p2pd: P2pd, addresses: tuple[str, ...], bottom: BottomLine,
        note: RunningNote,
    ) -> None:  # fmt: skip
        manifest = config.manifest
        self.config, self.p2pd, self.addresses = config, p2pd, addresses
        self.me = Peer(identity.peer_id, secrets.randbits(NONCE_BITS))
        self._with_card = card_signer(identity.peer_id, identity.sign)
        self._signed, self.settings = self._with_card(addresses), settings(manifest)
        self.speaking, self._noted = bottom.speaking, note
        self.failure: UserError | None = None
        self._met_somebody, self._offered, self._last_trouble = False, False, ""
        self._nursery: trio.Nursery | None = None
        self._readers: deque[tuple[str, int]] = deque(maxlen=READERS_TOLD)
        self._invited, self._announced, self._unanswered = tuple[str, ...](), "", set[str]()
        """Whom the last link names, what the author says, as they were last said, and which PeerIds do not answer."""
        seed = secrets.randbits(NONCE_BITS)
        self.arena = Arena(manifest.boundary_bytes.largest, manifest.slots(config.hold))
        self.trace = TraceWriter(
            new_trace_path(config.log_directory), trace_header(config, self.me, self._signed, self.settings, seed),
            lambda why: self.speaking.say("trace", why),
        )  # fmt: skip
        computing, *_ = configs = compute_configs(config)
        self.gradients = GradientMemory(gradient_numbers(computing), computing.number_bytes)
        snapshots = SnapshotMemory(state_numbers(computing), computing.number_bytes)
        self.compute = ComputeGroup(
            configs, self.arena, self._on_compute_ready, self._on_compute_lost, self._on_stage_lost,
            config.log_directory,
            self.settings.task_seconds, self.gradients, snapshots,
        )  # fmt: skip
        self.book = ManifestBook(manifest, config.manifest_text, config.home, self._on_newer_manifest)
        self.puncher = Puncher(p2pd, lambda: self.reachability.relays, self.book.admits)
        self.transport = self._transport(identity)
        self.spreading, self.relaying = Spreading(self.book, self.transport, self.me.id), self._relaying()
        self.directory = SwarmDirectory(
            RecordKeeper(manifest.run_id, manifest.run.name, self.me, lifetime_of(self.settings.lease_seconds)),
            p2pd, identity.sign, parse_peers(config.peers), self._on_directory,
            log_path=config.log_directory / "directory.log", remember=self._remember, know=self.transport.know,
            words=lambda: self.observer.words(identity.sign),
        )  # fmt: skip
        self.participant = Participant(
            self.me, self.settings, Random(seed), addresses=self._signed, hold=config.hold, site=config.site
        )
        self._about_peers, self.past = PeerLines(), NodeHistory(self._look, self._say_note)
        self._told_orders = ToldOrders(config.home, manifest.run_id, self.me.id)
        adapters = self.transport, self.compute, self.directory, self.arena, self.trace
        self.driver = Driver(self.participant, *adapters, self._on_note)
        self.observer = self._observer(sign_name(identity, config.name))
        self.driver.work = self.observer.work = bottom.work
        self.departure = Departure(
            self._look, self.driver.clock, self.compute, self._deliver, self.speaking.say, self._note_running
        )
        self.reductions = self.driver.tasks.reductions = self._reductions(identity)
        dumps = config.log_directory if config.dump_rebuilds else None
        self.donor = self._state_donor(manifest.run_id, dumps)
        self.shards, self.first = self._shards(), self._first_layers()
        self._ready: tuple[dict[str, Any], ...] = ()
        """What the compute processes said when they began; empty while there is none."""
        self.reachability = Reachability(p2pd, parse_peers(config.peers), self._on_reach, self.puncher.rules)
        self.dead_connections = self._dead_connections()
        borrower = Borrower(
            self.me, self.settings, self.arena, self.transport, self.donor, shape_of(self.compute.config)
        )
        self.driver.saver = self.saver = saver_for(config, snapshots, self.compute, self._look, self.speaking.say)
        self._hear_of_vouchers()
        self.driver.donor, self.driver.on_last = self.donor, self._on_last
        self.exports = ExportServer(
            manifest.run_id, manifest.run.steps, self.arena, self.compute, self._held,
            self.donor.next_advance, lambda: holders_of(self._look(), manifest.run_id), self._on_written,
        )  # fmt: skip
        self.driver.fetch_copies_by(CopyFetcher(manifest.run_id, borrower))
        self.driver.installer = Installer(
            manifest.run_id, self.settings, self.arena, self.compute, borrower,
            self.past.known.known_up_to, dumps,
        )  # fmt: skip
        self.disk = known_snapshots(config, shape_of(computing), self.driver, self.saver, self.speaking.say)
        self.signed_words = self._signed_words()
        self.undo_requests = UndoRequests(self._look, self.driver.deliver)

    def _signed_words(self) -> tuple[RollBook | LiarBook | OrderBook | None, ...]:
        """What others have signed, as this home keeps it."""
        config, driver, seals, say = self.config, self.driver, self.transport.seals, self.speaking.say
        of_run = config.home, config.manifest.run_id, self.settings, seals, self._deliver, say
        driver.rolls = roll_book(config, self.settings, seals, driver, say)
        driver.liars, driver.orders = LiarBook(*of_run), OrderBook(*of_run)
        return driver.rolls, driver.liars, driver.orders

    def _transport(self, identity: Identity) -> Transport:
        manifest = self.config.manifest
        return Transport(
            self.p2pd, self.arena, manifest.run_id, self.me.nonce, manifest.boundary_bytes, self._deliver,
            self._on_refusal, self._may_send_tensors, self.book, Attention(self._is_member, self._learns),
            identity.sign, punch=self.puncher.reach, way=lambda addresses: self.reachability.offers.way(addresses),
            signs_tensors=self.settings.checks > 0,
        )  # fmt: skip

    def _dead_connections(self) -> DeadConnections:
        return DeadConnections(
            self.p2pd, parse_peers(self.config.peers), self.settings.heartbeat_seconds, self._members,
            lambda: self.reachability.relays, self.reachability.renew,
        )  # fmt: skip

    def _observer(self, card: NameCard | None) -> Observer:
        punches = self.puncher.rules
        made = Observer(
            self._look, self.config, self.p2pd, self.speaking.say, self.driver.clock, lambda: punches.punched, card,
            self.book,
        )  # fmt: skip
        made.trouble = lambda: self.directory.link.trouble
        made.glance = lambda: Glance(self.compute.working, *self.transport.outbound, self.transport.line_rate)
        return made

    def _relaying(self) -> Relaying:
        up = self.config.limits.up
        return Relaying(
            self.p2pd, self.config.relay, lambda: up or self.transport.line_rate, self.transport.takes_part,
            self.speaking.say,
        )  # fmt: skip

    def _mover(self) -> Mover:
        return Mover(
            self.p2pd, self.puncher, self.reachability.offers, lambda: [peer.id for peer in self._look().contacts],
            self.transport.where, self.donor.next_advance, Random(),
        )  # fmt: skip

    def _shards(self) -> RunShards | None:
        if self.config.manifest.data.kind != "shards":
            return None
        from ftnode.node.data.shards import run_shards  # numpy comes with it, which other runs do without

        return run_shards(self.config, self.transport, self._look, self.speaking, self._tell_ready, self.p2pd.bandwidth)

    def _first_layers(self) -> FirstLayers | None:
        if not self.config.manifest.start.weights:
            return None
        from ftnode.node.data.first_layers import first_layers  # as above

        return first_layers(self.config, self.transport, self._look, self.speaking, self._tell_ready, self._fail)

    async def _share_files(self, nursery: trio.Nursery) -> None:
        """Token shards, and the model that the run begins with: fetched where they are needed, and lent."""
        assert self.driver.installer is not None
        self.driver.installer.first = self.first
        self.driver.copy_trials.whole_models = self.first is None or not self.first.frozen
        parts = [part for part in (self.shards, self.first) if part is not None]
        if not parts:
            return
        from ftnode.node.data.shard_lending import ShardLender

        stores = [part.store for part in parts]
        lender = ShardLender(
            self.book.manifest.run_id, stores, self.transport.strike, self.book.admits, self._network_of
        )  # fmt: skip
        await self.p2pd.serve(DATA_PROTOCOL, lender.serve)
        for part in parts:
            nursery.start_soon(part.run)

    async def _network_of(self, peer_id: str) -> str:
        """Where we see it; "" when that is not known."""
        with suppress(P2pdError):
            return implied_site(await self.p2pd.ends(peer_id))
        return ""

    async def live(self, nursery: trio.Nursery) -> UserError | None:
        """Serve until left, paused (`departure` says which) or failed."""
        config, self._nursery = self.config, nursery
        nursery.start_soon(self.compute.run)
        nursery.start_soon(self.saver.run)
        self.departure.keep = self.saver.keep_now if self.saver.keeps else None
        self.departure.stored = self.disk.newest
        self.departure.line_rate = lambda: self.config.limits.up or self.transport.line_rate
        self.departure.hand_over_seconds = self.config.hand_over_seconds
        self.driver.show_manifest, self.driver.ask_manifest = self.spreading.show_to, self.spreading.ask
        self._tell_order(self.book.manifest)
        for book in self.signed_words:
            if book is not None:
                book.tell()
        self.disk.tell()
        if noted := self.observer.book.read():
            self.driver.deliver(noted)
        nursery.start_soon(self.disk.check)
        nursery.start_soon(self.disk.keep_trying)
        self.reductions.begin(nursery)
        if self.settings.replicas > 1:
            nursery.start_soon(self.reductions.prepare)
        self.p2pd.knows = lambda peer_id: any(peer.id == peer_id for peer in self.driver.members)
        self.p2pd.gate.give(parse_peers(config.given))
        self.p2pd.gate.remember(parse_peers(config.peers))
        self.transport.move(self._signed)
        await self.transport.start(nursery)
        await self.p2pd.serve(STATE_PROTOCOL, self.donor.serve)
        await self.p2pd.serve(REDUCE_PROTOCOL, self.reductions.serve)
        await self.p2pd.serve(EXPORT_PROTOCOL, at_most(STREAMS_MAX, self.exports.serve))
        await self.p2pd.serve(STATUS_PROTOCOL, status_handler(self.status))
        await self.p2pd.serve(HISTORY_PROTOCOL, history_handler(self.past.tell))
        await self.p2pd.serve(KNOCK_PROTOCOL, knock_handler(self.p2pd))
        await self.p2pd.serve(PUNCH_PROTOCOL, self.puncher.handler)
        await self.relaying.service.serve()
        await self.p2pd.serve(SEEN_PROTOCOL, seen_handler(self.p2pd))
        await self.p2pd.serve(MANIFEST_PROTOCOL, manifest_handler(self.book, self._leads))
        nursery.start_soon(keep_running, "the exchange of manifests", self.spreading.run)
        nursery.start_soon(self._watch_vouchers)
        await self._share_files(nursery)
        self._note_running()
        self.speaking.say("join", f"{self.me.id} joins {config.manifest.run.name} ({config.manifest.run_id[:8]})",
                          peer=self.me.id, log=str(config.log_directory))  # fmt: skip
        self.speaking.say("look", how_to_look(config.home))
        self.speaking.say("log", f"{config.log_directory}")
        await self.observer.start(nursery)
        nursery.start_soon(self.directory.run)
        nursery.start_soon(keep_running, "the look at who reaches us", self.reachability.run)
        nursery.start_soon(keep_running, "relaying", self.relaying.run)
        nursery.start_soon(keep_running, "the move of circuits", self._mover().run)
        nursery.start_soon(keep_running, "the look at connections", self.dead_connections.run)
        nursery.start_soon(self.departure.watch_the_end)
        nursery.start_soon(self._give_up_alone)
        nursery.start_soon(self._watch_p2pd)
        nursery.start_soon(self._drive, nursery)
        await self.departure.done.wait()
        self.observer.close()
        paused = self.departure.pausing and not self.failure and not self.departure.leaving
        self.trace.close(self.driver.clock(), "paused" if paused else str(self.failure or "left"))
        if not paused:
            self._say_what_it_leaves()
        return self.failure

    def _say_what_it_leaves(self) -> None:
        """In one line, and for the command that asked it to leave."""
        fate, text = self.departure.fate, "left the swarm"
        note_left(self.config.home, self.me.id, fate)
        if self.failure is None or self.speaking.as_json:
            self.speaking.say("left", str(self.failure or "; ".join(filter(None, (text, told(fate))))))
        else:
            log.error("left: %s", self.failure)  # the command's own error, which ends it, says it

    def close(self) -> None:
        """After its life: give back the memory that is shared with compute."""
        self.arena.close()
        self.gradients.close()
        self.saver.close()

    def _note_running(self) -> None:
        """Who watches with `ftnode status` cannot dial through a relay, and asks remembered peers then."""
        direct = [address for address in self.addresses if "/p2p-circuit" not in address]
        full = full_addresses(self.me.id, direct)
        run, going, log = self.config.manifest, self.departure, str(self.config.log_directory)
        self._noted.write(
            Running(
                os.getpid(), self.me.id, run.run_id, full, going.leaving, going.keeps, going.frozen, log, run.run.name
            )
        )  # fmt: skip

    async def _invite(self, reachable: bool) -> None:
        """A link to this run, for the owner to pass on, once, and when the last one is of no use any more."""
        manifest = self.config.manifest
        rows = await self.observer.meet()
        peers = inviting_peers(rows, parse_peers(self.config.peers), reachable)
        if is_news(peers, self._invited):
            self._invited = peers
            self.speaking.say("invite", f"ftnode join '{Invitation(manifest.run_id, manifest.run.author, peers)}'")

    async def _drive(self, nursery: trio.Nursery) -> None:
        self._tell_announcement(self.book.manifest)
        await self.driver.run(nursery)
        await self.departure.save_the_rest(self.driver.saves)
        self.directory.withdraw()
        await trio.sleep(GOODBYE_SECONDS)
        self.departure.done.set()

    def _state_donor(self, run: str, dumps: Path | None) -> StateDonor:
        """Who lends what is here."""
        dumped = ("weights",) if self.settings.optimiser_state == "fresh" else ("weights", "all")
        return StateDonor(
            run, self.arena, self.compute, self.transport.strike, self.driver.record_export, dumps,
            dumped_parts=dumped, copies=self.driver.copies, allowed=self._may_borrow, held=self._held,
            history=self.past.known.after, on_lent=self.driver.lent,
        )  # fmt: skip

    def _on_last(self, stage: int, version: Version) -> None:
        """The stage has the weights of the run's end."""
        self.speaking.say(
            "finished", f"{spoken_stage(stage)} is done, and kept for `ftnode export` until this node is stopped"
        )
        if self.config.dump_rebuilds:
            path = self.config.log_directory / f"last-{stage}-{version.step}.weights"
            assert self._nursery is not None
            self._nursery.start_soon(try_to_dump, self.compute, self.arena, stage, version, path)

    def _on_written(self, reader: str, step: int) -> None:
        """Once for each of our stages, and said once."""
        if (reader, step) not in self._readers:
            self._readers.append((reader, step))
            text = f"{reader} has written down the model of step {step}"
            self.speaking.say("exported", text, reader=reader, step=str(step))
        self.departure.on_export(step == self.settings.steps, self.config.until_exported)

    def _fail(self, failure: UserError) -> None:
        self.failure = self.failure or failure
        self.departure.done.set()

    # -- what the core shows

    def _look(self) -> Picture:
        return self.participant.picture

    def _held(self, stage: int) -> Version | None:
        """Its weights here, or those that compute makes when it has done what it was told."""
        return self._look().versions.get(stage)

    # -- what can end it

    async def _watch_p2pd(self) -> None:
        await self.p2pd.died.wait()
        self._fail(UserError(f"p2pd died; see {self.config.log_directory / 'p2pd.log'} and join again", 69))

    async def _give_up_alone(self) -> None:
        """Nobody to start from for --timeout is an error that a person can mend."""
        failure = await nobody_met(
            self.config.timeout, self.reachability, lambda: self._met_somebody, lambda: self._last_trouble,
            self.observer.clock_trouble,
        )  # fmt: skip
        if failure is not None:
            self._fail(failure)

    # -- what adapters tell

    def _deliver(self, event: Any) -> None:
        if isinstance(event, Received):
            self.dead_connections.silences.heard(event.sender.id, trio.current_time())
        if isinstance(event, LinkDown) and not event.refused:
            self.dead_connections.silences.broken(event.peer.id)
        self.driver.deliver(event)

    def _reductions(self, identity: Identity) -> Reductions:
        manifest = self.config.manifest
        return Reductions(
            manifest.run_id, self.me, self.gradients, self.compute, self.transport, self._may_borrow,
            manifest.pipeline.sums, self.p2pd.relay_of,
            PartSeals(manifest.run_id, identity.sign, verify) if manifest.trust.checks else None,
            self.settings.sum_seconds,
        )  # fmt: skip

    def _may_send_tensors(self, peer: Peer) -> bool:
        """Members of our view may, and while we are in none, we cannot tell."""
        senders = self.driver.tensor_senders
        return senders is None or peer in senders

    def _is_member(self, peer: Peer) -> bool:
        return peer in self.driver.members

    def _members(self) -> frozenset[str]:
        return frozenset(peer.id for peer in self.driver.members)

    def _learns(self, peer: Peer) -> bool:
        return any(peer == learner for _, learner in self._look().learners)

    def _may_borrow(self, peer_id: str) -> bool:
        """As above; outside of a view we have but copies to lend, to members of a view that we may
        not know. Learners borrow as members do."""
        if not self.book.admits(peer_id):
            return False
        picture = self._look()
        learners = (peer for _, peer in picture.learners)
        return not picture.member or any(peer.id == peer_id for peer in (*picture.members, *learners))

    def _on_note(self, note: Note) -> None:
        """For people and watchers. The trace has all of them."""
        if note.kind == "nonsense":
            text = self._about_peers.passed(dict(note.fields).get("peer", ""), note.text, trio.current_time())
            note = replace(note, text=text)
        if note.text:
            self.past.note(note)

    def _say_note(self, note: Note) -> None:
        """To the owner."""
        if note.kind != "rollback" or self._told_orders.is_news(self._look().order.number, note.text):
            self.speaking.note(note)
        else:
            log.info("as at an earlier start: %s", note.text)

    def _hear_of_vouchers(self) -> None:
        self.driver.on_liar = self._on_liar
        self.book.on_vouched, self.book.on_stranger = self._on_vouched, self.spreading.show_to
        self.book.on_liar = lambda peer_id: self.driver.deliver(Lied(peer_id))

    def _leads(self, peer_id: str) -> bool:
        view = self._look().view
        return view is not None and view.leader.id == peer_id

    def _on_liar(self, peer_id: str) -> None:
        """We lead: members are told, since each asks newcomers in and checks for itself."""
        self.book.has_lied(peer_id)
        self.spreading.tell_of(peer_id, *(peer.id for peer in self._look().members if peer != self.me))

    def _on_vouched(self, newcomers: bool) -> None:
        """Members that have it from a newcomer tell all others, so that no view surprises them."""
        self.driver.deliver(Vouched(tuple(sorted(self.book.vouching.answers_for().items()))))
        if newcomers:
            self.spreading.show_to(*(peer.id for peer in self._look().members if peer != self.me))

    async def _watch_vouchers(self) -> None:
        """Whose voucher has ended is cut off, we ourselves, too."""
        known: dict[str, str] = {}
        while True:
            now = self.book.vouching.answers_for()
            if now != known:
                known = now
                self._on_vouched(newcomers=False)
                self.transport.drop_unlisted()
            if self.book.manifest.membership.join == "vouched" and not self.book.admits(self.me.id):
                self._fail(UserError(not_listed(self.book.manifest, self.me.id), 77))
            await trio.sleep(VOUCHERS_SECONDS)

    def _on_refusal(self, peer: Peer, reason: str) -> None:
        """Its list may be older than ours, or newer. Nothing is said while it is to see what may change its mind."""
        if not self.spreading.has_news_for(peer.id):
            line = self._about_peers.passed(peer.id, f"{peer} refuses us: {reason}", trio.current_time())
            if line:
                self.speaking.say("refused", line, peer=peer.id)
        if not self.book.admits(self.me.id):
            self._fail(UserError(not_listed(self.book.manifest, self.me.id), 77))
        self.spreading.show_to(peer.id)
        self.spreading.ask(peer.id)

    def _on_newer_manifest(self, manifest: Manifest) -> None:
        self.speaking.say("manifest", f"revision {manifest.membership.revision} of the manifest is in force")
        self._tell_announcement(manifest)
        self._tell_order(manifest)
        self.transport.drop_unlisted()
        self.spreading.show_to(*(peer.id for peer in self._look().members if peer != self.me))
        if not self.book.admits(self.me.id):
            self._fail(UserError(not_listed(self.book.manifest, self.me.id), 77))

    def _tell_order(self, manifest: Manifest) -> None:
        if (order := order_of(manifest)).number:
            self.driver.deliver(Ordered(order))

    def _tell_announcement(self, manifest: Manifest) -> None:
        """Once for each that is another than before."""
        message = manifest.membership.message
        if message != self._announced:
            self._announced = message
            said = f"the run's author says: {message}" if message else "the run's author takes the last message back"
            self.speaking.say("announcement", said)

    def _on_reach(self, reach: Reach) -> None:
        self.speaking.say("reachable", str(reach), reach=reach.kind)
        self.observer.reach = str(reach)
        self.relaying.look(reach)
        if reach.addresses != self.addresses:
            self.addresses = reach.addresses
            self._signed = self._with_card(reach.addresses)
            self.transport.move(self._signed)
            self.driver.deliver(Moved(self._signed))
            self._note_running()
        if reach.kind != "unknown" and self._nursery is not None:
            self._nursery.start_soon(self._invite, reach.kind == "direct")

    def _remember(self, peers: tuple[PeerAddress, ...]) -> None:
        """For the next start, where they may be dialled now."""
        gate = self.p2pd.gate
        remember_peers(self.config.home, [full for peer in peers for full in gate.presentable(peer)])

    def _tell_unanswered(self) -> None:
        link = self.directory.link
        for peer_id, line in unanswered(parse_peers(self.config.given), link.met, link.unreachable).items():
            if peer_id not in self._unanswered:
                self._unanswered.add(peer_id)
                self.speaking.say("peer", line, peer=peer_id)

    def _on_directory(self, event: Directory | DirectoryLost) -> None:
        event = believable(event, self.observer.clock_trouble())
        self._tell_unanswered()
        if isinstance(event, Directory):
            event = self.book.admitted(event)
        if isinstance(event, DirectoryLost):
            self._last_trouble = event.reason
        elif not self._met_somebody:
            self._met_somebody = True
            remember_peers(self.config.home, self.config.peers)
            if not event.certificates and not event.presences:
                assert self._nursery is not None
                self._nursery.start_soon(self._tell_of_namesakes)
        self.driver.deliver(event)

    async def _tell_of_namesakes(self) -> None:
        """Nobody of this run is here. If a run of the same name is, somebody may have edited the manifest."""
        if line := await namesakes_line(self.directory.link, self.config.manifest):
            self.speaking.say("namesake", line)

    def _on_compute_ready(self, ready: tuple[dict[str, Any], ...]) -> None:
        self._ready = ready
        self.observer.device = devices_text([str(each["device"]) for each in ready])
        self._tell_ready()

    def _tell_ready(self) -> None:
        """Once both compute and what there is of the corpus are known, and again when there is all of it."""
        ready, hold = self._ready, self.config.hold
        if not ready or (self.shards is not None and not self.shards.surveyed):
            return
        slowest = min(float(each["tokens_per_second"]) for each in ready)
        if self.first is not None and not self.first.surveyed:  # as a standby it meets those who have its layers
            self.driver.deliver(ComputeReady(0, False, slowest))
            return
        copies = copies_bytes(self.config)
        live = activations_at_once(ready, self.settings.live_activations, copies)
        head, why = self.shards.head() if self.shards is not None else may_hold_head(self.config.manifest, ready[0])
        self.compute.room, self.compute.head_place, no_room = room_on(ready, hold, live, copies, head)
        if no_room:
            head, why = False, no_room
        offer = offer_of(
            self.config.manifest, ready, self.compute.room, hold, self.config.limits.up, copies, live, head
        )
        fitting = offer.stages
        self.observer.no_head = "" if head else why
        for line in describe_compute(ready, live, copies, head, why):
            self.speaking.say("compute", line)
        for text, fields in offer.lines:
            self.speaking.say("offer", text, **fields)
        if offer.too_small and not self._offered:
            error = f"{offer.too_small}; free some, give more (--vram), or choose a smaller run"
            self._fail(UserError(error, self._no_room_code))
            return
        self._offered = True
        if slow := too_slow(self.config.manifest, self.config.limits.up, fitting, head, self.config.hand_over_seconds):
            self.speaking.say("limits", slow)
        kept = live_here(live, self.settings.live_activations)
        if kept >= 0:
            self.speaking.say("compute", activations_text(kept))
        self.driver.deliver(ComputeReady(fitting, head, slowest, kept))

    def _on_stage_lost(self, stage: int, reason: str, out_of_memory: bool) -> None:
        self.driver.stage_lost(stage, reason, out_of_memory)

    def _on_compute_lost(self, reason: str) -> None:
        self._ready = ()
        log.warning("the compute process is lost: %s", reason)
        if not self.compute.refusal:
            self.driver.compute_lost(reason)  # and the core says it
        else:  # it would say so again and again
            cause = f"cannot compute on {self.config.device}: {self.compute.refusal}"
            self._fail(UserError(f"{cause}; choose another --device or --vram", self._no_room_code))

    @property
    def _no_room_code(self) -> int:
        """Others may use the memory only for now. Where the owner named a limit, that has to change first."""
        return 69 if self.config.limits.memory == ALL_OF_IT else 78

    def status(self) -> SwarmStatus:
        """For watchers."""
        return self.observer.status()

    def live_parts(self) -> list[list[Part]]:
        """What the live line says: the run, and this node."""
        going = self.departure
        if going.frozen:
            return [[Part(0, f"stands still: {going.frozen}")]]
        state = "waits for somebody to export the model" if going.keeps else ""
        if not going.keeps and (going.pausing or going.leaving):
            picture = self._look()
            state = f"hands over {names_of(only_here(picture, (self.me,), self.driver.clock()))}".rstrip()
        status = self.observer.status(curve=False)
        return [run_parts(status), own_parts(status, self.observer.work, going.holds, state)]
