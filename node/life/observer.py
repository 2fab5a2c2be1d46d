"""The node as its watchers see it: status, metrics, and what is known of other peers. It only looks at the core.

One task looks every second, on the event loop of the driver and so between two turns of the core: what has moved goes
to `metrics.jsonl`. Status and `/metrics` are made when somebody asks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from random import choice
from typing import Final

import trio

from ftnode.node.directory.records import CLOCK_SKEW_MS_MAX
from ftnode.node.home.identity import Sign
from ftnode.node.home.name_card import NameCard
from ftnode.node.home.waiting import tell_waits
from ftnode.node.links import undigested
from ftnode.node.links.addresses import parse_peers
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.manifests.book import ManifestBook
from ftnode.node.owner.join_options import JoinConfig
from ftnode.node.watch.alarms import alarms, head_wanted, own_waiting
from ftnode.node.watch.clock_news import ClockNews
from ftnode.node.watch.credit_book import CreditBook
from ftnode.node.watch.line_news import LineNews
from ftnode.node.watch.metrics_file import METRICS_NAME, MetricsFile
from ftnode.node.watch.metrics_server import NONE, MetricsServer
from ftnode.node.watch.old_recoveries import OldRecoveries
from ftnode.node.watch.own_work import OwnWork, summary
from ftnode.node.watch.peer_latency import WHO_PROTOCOL, Acquaintances, status_of, who_handler
from ftnode.node.watch.progress import Progress
from ftnode.node.watch.run_status import Surroundings, look, run_status, undigested_rows
from ftnode.node.watch.status import PeerRow, Speaker, SwarmStatus
from ftnode.node.watch.time_use import Glance, TimeRecord
from ftnode.node.watch.told_on import signed_words
from ftnode.node.watch.versions import VERSION, VersionNews
from ftnode.protocol.picture import Picture

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
GLANCE_SECONDS: Final = 0.1
FIRST_PAST_SECONDS: Final = 10.0
PAST_SECONDS: Final = 60.0


class Observer:
    """Everything that a node tells about itself and its run. `say` is for the owner.

    Raises UserError when `metrics.jsonl` cannot be written, or `/metrics` not be served.
    """

    def __init__(
        self, look: Callable[[], Picture], config: JoinConfig, p2pd: P2pd, say: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic, punched: Callable[[], Collection[str]] = tuple,
        card: NameCard | None = None, manifests: ManifestBook | None = None,
    ) -> None:  # fmt: skip
        """`card`: our own name."""
        self._look, self._config, self._p2pd, self._say, self._clock = look, config, p2pd, say, clock
        self._manifests = manifests
        self.device = config.device
        self.reach = ""
        """How others reach us, in words."""
        self.trouble: Callable[[], str] = lambda: ""
        """What this node waits for, whatever its run does."""
        self.no_head = ""
        """Why this node cannot hold the head; empty when it can, or does not know yet."""
        self.glance: Callable[[], Glance] = lambda: Glance(False, False, False, 0.0)
        """What compute and the lines do at this moment."""
        self.work = OwnWork()
        """What this node does."""
        self._told_end, self._alarmed = False, frozenset[str]()
        self._time, self._line = TimeRecord(), LineNews(config.manifest)
        self._clocks, self._versions = ClockNews(CLOCK_SKEW_MS_MAX / 1000), VersionNews(config.home)
        self._progress, self._past = Progress(), OldRecoveries()
        self.book = CreditBook(config.home, config.manifest.run_id, lambda: look().history.credit)
        self._card = card
        if card is not None:
            self.book.learn(look().me.id, card.name, card.text)
        self._acquaintances = Acquaintances(p2pd, self._wanted, self.book.learn, punched)
        self._file = MetricsFile(config.log_directory / METRICS_NAME, lambda why: say("metrics", why))

    async def start(self, nursery: trio.Nursery) -> None:
        """Observe until the nursery is cancelled."""
        manifest = self._config.manifest
        self._file.start(
            time.time(), peer=self._look().me.id, run=manifest.run_id, name=manifest.run.name, version=VERSION
        )
        await self._p2pd.serve(WHO_PROTOCOL, who_handler(self._speaker, use=self._time.use, card=self._card))
        if self._config.metrics != NONE:
            server = MetricsServer(self._config.metrics, lambda: self.status(curve=False))
            nursery.start_soon(server.run)
            self._say("metrics", server.line)
        nursery.start_soon(undigested.keep_running, "the question who others are", self._acquaintances.run)
        nursery.start_soon(self.book.run)
        nursery.start_soon(undigested.keep_running, "the question what was before", self._ask_for_the_past)
        nursery.start_soon(tell_waits, self._waits, self._say)
        nursery.start_soon(undigested.keep_running, "the look at the run", self._look_again_and_again)
        nursery.start_soon(undigested.keep_running, "the look at this machine", self._glance_again_and_again)

    def status(self, curve: bool = True) -> SwarmStatus:
        """For watchers."""
        now, picture = self._clock(), self._look()
        look(picture, self._progress, now)
        around = Surroundings(
            self.device,
            self._progress,
            self._acquaintances.known,
            self.reach,
            time.time(),
            self.trouble() or head_wanted(picture, self.no_head),
            undigested_rows(undigested.FAILURES),
            self._time.use(),
            self._manifests.manifest.membership.revision if self._manifests else 0,
            self.book.rows(),
            self._past.filled,
        )
        return run_status(picture, self._config.manifest, around, now, curve)

    def words(self, sign: Sign) -> str:
        """What a meeting point may tell on of the run, as of now, signed by `sign`."""
        return signed_words(self.status(curve=False), int(time.time() * 1000), sign)

    def _waits(self) -> str:
        """What this node waits for, that of which it can do something first."""
        picture = self._look()
        return head_wanted(picture, self.no_head) or own_waiting(picture) or self.trouble()

    async def meet(self) -> tuple[PeerRow, ...]:
        """The peers of a status, just asked who they are."""
        try:
            await self._acquaintances.look()
        except P2pdError as error:
            log.info("no look at the connections: %s", error)
        return self.status(curve=False).peers

    def clock_trouble(self) -> str:
        """By how much our clock is off, where it is so far that nobody is seen by the directory; else empty."""
        return self._clocks.too_far(self._acquaintances.known.values())

    def close(self) -> None:
        """Write what has happened since the last look."""
        self.book.write()
        self._file.look(self._look().history, time.time())
        self._file.close()

    async def _look_again_and_again(self) -> None:
        while True:
            picture = self._look()
            look(picture, self._progress, self._clock())
            self._file.look(picture.history, time.time())
            self.work.look(picture, time.monotonic())
            self._tell_the_end(picture)
            self._tell_of_alarms(picture)
            if news := self._line.look(self._time.use()):
                self._say("line", news)
            if news := self._clocks.look(self._acquaintances.known.values()):
                self._say("clock", news)
            if news := self._versions.look([met.version for met in self._acquaintances.known.values()]):
                self._say("version", news)
            await trio.sleep(LOOK_SECONDS)

    def _tell_the_end(self, picture: Picture) -> None:
        """Once, when the run is done."""
        if not picture.over or self._told_end:
            return
        done = f"all {picture.settings.steps:,} steps are done"
        if picture.finished and self.work.visits:
            self._say("summary", f"{done}; {summary(self.work)}")
        elif not picture.finished and not picture.mine:
            self._say("finished", f"{done}: nothing is left to compute; get the model with: ftnode export MANIFEST DIR")
        self._told_end = picture.finished or not picture.mine

    def _tell_of_alarms(self, picture: Picture) -> None:
        """Each once, until it is over; figures behind the first clause may change meanwhile."""
        now = {text.partition(";")[0]: text for text in alarms(picture, self._clock())}
        for clause, text in now.items():
            if clause not in self._alarmed:
                self._say("alarm", text)
        self._alarmed = frozenset(now)

    async def _glance_again_and_again(self) -> None:
        while True:
            self._time.glance(self.glance(), trio.current_time())
            await trio.sleep(GLANCE_SECONDS)

    async def _ask_for_the_past(self) -> None:
        """Now and then a volunteer that we are connected to: what those are called who have gone, and what it saw of
        recoveries of before our time."""
        await trio.sleep(FIRST_PAST_SECONDS)
        while True:
            met = [peer for peer, known in self._acquaintances.known.items() if known.role == "volunteer"]
            told = await status_of(self._p2pd, choice(met)) if met else None
            if told is not None and told.run == self._config.manifest.run_id:
                self.book.learn_from(told.credits)
                self._past.learn(told.recoveries, self._look().history.rebuilds)
            await trio.sleep(PAST_SECONDS)

    def _speaker(self) -> Speaker:
        return Speaker(self._look().me.id, VERSION, self.device, "volunteer", self.reach)

    def _wanted(self) -> list[str]:
        """Members, who stands by, and the meeting points that we were given."""
        picture = self._look()
        known = [*sorted(picture.members), *sorted(picture.presences)]
        peers = [peer.id for peer in known if peer != picture.me]
        return [*peers, *(peer.peer_id for peer in parse_peers(self._config.peers))]
