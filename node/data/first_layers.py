"""The weights that a run began with, for volunteers whose stage nobody has trained yet.

    survey (--from FOLDER, the home's folder) → the index, from there or from peers → layers when a stage needs them

Who passes the model's folder with --from reads and lends from it, without a copy. Everybody else fetches the layers of
its stages, keeps them, and lends them on (layer_store.py). A layer that is here is hashed again by whoever computes
with it (models/initial.py). The whole story: docs/explanation/data.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from ftnode.models.config import ModelConfig
from ftnode.models.data import DataError
from ftnode.models.first_weights import layer_names
from ftnode.node.data.fetching import PAUSES_SECONDS, Fetching
from ftnode.node.data.layer_store import AnotherModel, LayerStore
from ftnode.node.data.shard_sources import ShardSource, peers_to_ask
from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.join_options import JoinConfig, shards_folder
from ftnode.node.ports import LayersMissing, StreamOpener
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.errors import UserError

ERRORS = "first_layers"

ASK_SECONDS: Final = 1.0
"""Until it is looked again whether the layers of a stage are here."""
STILL_SECONDS: Final = 300.0
"""Without a byte of what a stage needs, and the stage is left to somebody else."""


class FirstLayers(Fetching):
    """`run` is a task of the node. `changed` is called when it is known which layers there are."""

    store: LayerStore

    def __init__(
        self, store: LayerStore, model: ModelConfig, stages: int, local: Path | None,
        sources: Callable[[], Sequence[ShardSource]], chance: Random, tell: Callable[[str], None],
        changed: Callable[[], None], held: Callable[[], Collection[int]], fail: Callable[[UserError], None],
    ) -> None:  # fmt: skip
        """`local`, `sources`, `tell`: as of Fetching. `held`: the stages whose layers stay here. `fail`: the owner has
        to mend this."""
        super().__init__(store, local, sources, chance, tell)
        store.staying = lambda: {name for stage in held() for name in layer_names(model, stages, stage)}
        self._model, self._stages, self._changed = model, stages, changed
        self._fail, self._asked = fail, trio.Event()

    @property
    def frozen(self) -> bool:
        """Some weights are not trained, and so are needed whenever a stage is filled."""
        return not self._model.trains_all

    async def run(self) -> None:
        """Find the index, and fetch what is asked for, until cancelled."""
        try:
            await self._persist(self._begin)
            self.surveyed = True
            self._changed()
            while True:
                self._asked = trio.Event()
                if self.store.missing():
                    names = ", ".join(file.name for file in self.store.missing())
                    if not self._passing:
                        self._tell(f"{names} of the model that the run began with come from peers")
                    await self._persist(self._fetch_all)
                if not self.store.missing():
                    await self._asked.wait()
        except DataError as error:
            self.trouble = str(error)
            if isinstance(error, AnotherModel):
                self._fail(UserError(f"--from: {error}; leave it out, and others' layers are fetched", 65))
        finally:
            self.store.close()
        self._tell(self.trouble)

    async def _begin(self) -> None:
        await self._survey()
        await self._find_index()

    async def layers(self, stage: int) -> dict[str, Any]:
        """What the compute process needs to begin a stage, once it is here: {dtype, layers: [[sha256, [[path, start,
        size], …]], …]}, in order. Raises LayersMissing when nothing comes any more."""
        names = layer_names(self._model, self._stages, stage)
        with self.store.waiting_for(names):
            self._asked.set()
            await self._all_here(names)
        hashes = {file.name: file.sha256 for file in self.store.weights.files}
        rows = [[hashes[name], [list(span) for span in self.store.spans(name)]] for name in names]
        return {"dtype": self.store.weights.dtype, "layers": rows}

    async def _all_here(self, names: Sequence[str]) -> None:
        """Wait for them. Raises LayersMissing."""
        came, since = -1, trio.current_time()
        while not self.surveyed or any(name not in self.store.have for name in names):
            if self.trouble:
                raise LayersMissing(self.trouble)
            if came != (now := self.store.come()):
                came, since = now, trio.current_time()
            if trio.current_time() - since > STILL_SECONDS:
                raise LayersMissing(
                    f"nobody has given {', '.join(names)} of the model that the run begins with for "
                    f"{STILL_SECONDS:.0f} s; pass its folder with --from"
                )
            await trio.sleep(ASK_SECONDS)

    def spoiled(self, stage: int) -> None:
        """Its layers were not what their hashes say when they were read. They are fetched, and the model's folder,
        which has changed, is left alone."""
        self._local = None
        self.store.spoiled(layer_names(self._model, self._stages, stage))

    async def _find_index(self) -> None:
        """From peers, when it is not here."""
        if self.store.index is not None:
            return
        self._tell("waits for a peer that has the model that the run begins with; or pass its folder with --from")
        for pause in chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1])):
            if self.store.lock():
                await self._survey()  # another node of this home may have found it
                if self.store.index is None:
                    await self._round(self._sources())
                self.store.unlock()
            if self.store.index is not None:
                return
            await trio.sleep(pause)


def first_layers(
    config: JoinConfig, opener: StreamOpener, look: Callable[[], Picture], speaking: Speaking,
    changed: Callable[[], None], fail: Callable[[UserError], None],
) -> FirstLayers:  # fmt: skip
    """Those of the run that a node joins."""
    manifest, chance = config.manifest, Random(secrets.randbits(64))
    model, sha256 = ModelConfig.of(manifest.model), manifest.start.weights
    store = LayerStore(shards_folder(config.home, sha256), sha256, model, config.data_bytes_max)
    return FirstLayers(
        store, model, manifest.pipeline.stages, config.start,
        lambda: peers_to_ask(look(), manifest.run_id, opener, chance), chance,
        lambda text: speaking.say("model", text), changed, lambda: {*look().versions, *look().mine}, fail,
    )  # fmt: skip
