"""The corpus of a run that trains on token shards: looked for, fetched, checked, and then the head may be held.

    survey (home's folder, --data DIR) → fetch what is missing (--data URL, peers) → all is whole → may hold the head

Who lacks a shard fetches it before it offers itself for the head, one file at a time, whichever stage it holds
meanwhile; so the corpus outlives any holder of the head. What is here already is lent to others. The whole story:
docs/explanation/data.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from ftnode.models.data import DataError
from ftnode.node.data.fetching import Fetching
from ftnode.node.data.shard_sources import ShardSource, peers_to_ask
from ftnode.node.data.shard_store import ShardStore
from ftnode.node.links.bandwidth import Bandwidth
from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.join_options import JoinConfig, shards_folder
from ftnode.node.ports import StreamOpener
from ftnode.protocol.picture import Picture


class RunShards(Fetching):
    """`run` is a task of the node. `changed` is called when `surveyed`, and when the shards are whole."""

    def __init__(
        self,
        store: ShardStore,
        local: Path | None,
        sources: Callable[[], Sequence[ShardSource]],
        chance: Random,
        tell: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        """`local`, `sources`, `tell`: as of Fetching."""
        super().__init__(store, local, sources, chance, tell)
        self._changed = changed

    def head(self) -> tuple[bool, str]:
        """Whether the head may be held, and why not."""
        if self.store.complete:
            return True, ""
        if self.trouble:
            return False, self.trouble
        if self.store.index is None:
            return False, "the index of the run's shards is not here yet"
        count = len(self.store.index.files)
        return False, f"{count - len(self.store.missing())} of {count} files of the run's shards are here"

    async def run(self) -> None:
        """Until all is here, or it is known that it will never be."""
        try:
            await self._persist(self._look_and_fetch, self._known)
        except DataError as error:
            self.trouble = str(error)
            self._tell(self.trouble)
        if not self.trouble and self.store.index is not None:
            files = self.store.index.files
            self._tell(f"all {len(files)} files of the run's shards are here, {self.store.index.size / 1e6:,.1f} MB")
        self._known()

    async def _look_and_fetch(self) -> None:
        if not self.surveyed:
            await self._survey()
            if self.store.complete:
                return
            self._tell(self.head()[1])
            self._known()
        await self._fetch_all()

    def _known(self) -> None:
        """What is here, and whether more can come now."""
        self.surveyed = True
        self._changed()


def run_shards(
    config: JoinConfig,
    opener: StreamOpener,
    look: Callable[[], Picture],
    speaking: Speaking,
    changed: Callable[[], None],
    bandwidth: Bandwidth | None = None,
) -> RunShards:
    """The shards of the run that a node joins; its address is asked first, then peers in any order. `bandwidth`: what
    comes from the address counts, too."""
    manifest, chance = config.manifest, Random(secrets.randbits(64))
    folder = shards_folder(config.home, manifest.data.sha256)
    store = ShardStore(folder, manifest.data.sha256, manifest.model.vocabulary, config.data_bytes_max)

    served: list[ShardSource] = []
    if config.data_url:
        from ftnode.node.data.shard_http import HttpShards

        served.append(HttpShards(config.data_url, bandwidth.down if bandwidth else None))

    def sources() -> list[ShardSource]:
        return served + peers_to_ask(look(), manifest.run_id, opener, chance)

    return RunShards(store, config.data, sources, chance, lambda text: speaking.say("data", text), changed)
