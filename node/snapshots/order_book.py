"""The newest order to roll back that a run's members gave, as a home keeps it: HOME/orders/RUN.json (rule 47).

It is small and public: all nodes of a home share it. What cannot be read, or has a signature that is not by whom it
names, counts for nothing, and the node goes on as one that has none. Its owner is told.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.links.seals import Seals
from ftnode.node.snapshots.signed_words import ORDER_BYTES_MAX, ORDERS, logged, read_list
from ftnode.protocol.wire.admission import sensible_order
from ftnode.protocol.words.codec import from_plain, to_plain
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Event, OrderKept
from ftnode.protocol.words.messages import MembersOrder
from ftnode.protocol.words.settings import Settings

log = logging.getLogger(__name__)


class OrderBook:
    """Of one run. `seals`: ours, which fill in what we have signed, and check what is read. `say`: to the owner."""

    def __init__(
        self, home: Path, run: str, settings: Settings, seals: Seals, deliver: Callable[[Event], None],
        say: Callable[..., None] = lambda kind, text: logged(text),
    ) -> None:  # fmt: skip
        self._home, self._name = home, f"{run}.json"
        self._settings, self._seals, self._deliver = settings, seals, deliver
        self._say: Callable[[str], None] = partial(say, "rollback")
        self._writing = trio.CapacityLimiter(1)

    def tell(self) -> None:
        """What lies there, when the node begins."""
        if (order := self._read()) is not None:
            self._deliver(OrderKept(order))

    async def keep(self, order: MembersOrder | None) -> None:
        """On the disk, in the place of an earlier one; None: it is no order any more. When the disk refuses, only this
        life knows."""
        sealed = self._seals.sealed_order(order) if order is not None else None
        in_thread: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        try:
            await in_thread(self._write, sealed, limiter=self._writing)
        except OSError as error:
            log.warning("what members ordered last is not kept for the next start: %s", error)

    def _write(self, order: MembersOrder | None) -> None:
        if order is None:
            (self._home / ORDERS / self._name).unlink(missing_ok=True)
            return
        with folder_of(self._home, ORDERS) as folder:
            write_file(self._home, folder, self._name, json.dumps([to_plain(order)]) + "\n", sync=True)

    def _read(self) -> MembersOrder | None:
        path = self._home / ORDERS / self._name
        try:
            (plain,) = read_list(path, ORDER_BYTES_MAX)
            order: MembersOrder = from_plain(MembersOrder, plain)
            if not sensible_order(order, self._settings):
                raise ValueError("no order of this run")
            self._seals.check_order(order)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, PeerError) as error:
            self._say(f"whether members ordered to roll back is not known from before: {path} cannot be used: {error}")
            return None
        return order
