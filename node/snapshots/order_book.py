"""The newest order to roll back that a run's members gave, as a home keeps it: HOME/orders/RUN.json (rule 47).

It is small and public: all nodes of a home share it. What cannot be read, or has a signature that is not by whom it
names, counts for nothing, and the node goes on as one that has none. Its owner is told.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.snapshots.signed_book import SignedBook
from ftnode.node.snapshots.signed_words import ORDER_BYTES_MAX, ORDERS, read_list
from ftnode.protocol.wire.admission import sensible_order
from ftnode.protocol.words.codec import from_plain, to_plain
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import OrderKept
from ftnode.protocol.words.messages import MembersOrder

log = logging.getLogger(__name__)


class OrderBook(SignedBook):
    """Of one run."""

    KIND = "rollback"

    def tell(self) -> None:
        """What lies there, when the node begins."""
        if (order := self._read()) is not None:
            self._deliver(OrderKept(order))

    async def keep(self, order: MembersOrder | None) -> None:
        """On the disk, in the place of an earlier one; None: it is no order any more. When the disk refuses, only this
        life knows."""
        sealed = self._seals.sealed_order(order) if order is not None else None
        try:
            await self._in_thread(self._write, sealed)
        except OSError as error:
            log.warning("what members ordered last is not kept for the next start: %s", error)

    @property
    def _path(self) -> Path:
        return self._home / ORDERS / f"{self._run}.json"

    def _write(self, order: MembersOrder | None) -> None:
        if order is None:
            self._path.unlink(missing_ok=True)
            return
        with folder_of(self._home, ORDERS) as folder:
            write_file(self._home, folder, self._path.name, json.dumps([to_plain(order)]) + "\n", sync=True)

    def _read(self) -> MembersOrder | None:
        path = self._path
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
