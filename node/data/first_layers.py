"""The weights that a run began with, for volunteers whose stage nobody has trained yet.

    survey (--from FOLDER, the home's folder) → the index, from there or from peers → layers when a stage needs them

Who passes the model's folder with --from reads and lends from it, without a copy. Everybody else fetches the layers of
its stages, keeps them, and lends them on; nobody needs the others' layers. A layer that is here is hashed again by
whoever computes with it (models/initial.py).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from ftnode.models.config import ModelConfig
from ftnode.models.data import DataError
from ftnode.models.first_weights import (
    INDEX_BYTES_MAX,
    WEIGHTS_NAME,
    Checkpoint,
    Span,
    WeightIndex,
    layer_names,
    open_checkpoint,
    parse_index,
)
from ftnode.models.huggingface import NoModel
from ftnode.models.shards import StoredFile, check_file
from ftnode.node.data.fetching import PAUSES_SECONDS, Fetching
from ftnode.node.data.shard_sources import ShardSource, peers_to_ask
from ftnode.node.data.shard_store import ShardStore
from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.join_options import JoinConfig, shards_folder
from ftnode.node.ports import LayersMissing, StreamOpener
from ftnode.protocol.picture import Picture

ASK_SECONDS: Final = 1.0
"""Until it is looked again whether the layers of a stage are here."""
STILL_SECONDS: Final = 300.0
"""Without a byte of what a stage needs, and the stage is left to somebody else."""


class LayerStore(ShardStore):
    """Layers of the model that the run began with, in the home's folder or in the model's own."""

    index_name = WEIGHTS_NAME
    index_bytes_max = INDEX_BYTES_MAX
    what = "first weights"

    def __init__(self, folder: Path, sha256: str, model: ModelConfig, bytes_max: int) -> None:
        super().__init__(folder, sha256, model.vocabulary, bytes_max)
        self.wanted: set[str] = set()
        """Names of the layers that are needed here."""
        self._model = model
        self._given: Checkpoint | None = None

    @property
    def weights(self) -> WeightIndex:
        """Once there is an index."""
        assert isinstance(self.index, WeightIndex)
        return self.index

    @property
    def size(self) -> int:
        return sum(file.size for file in self.weights.files if file.name in self.wanted)

    def missing(self) -> list[Any]:
        return [file for file in super().missing() if file.name in self.wanted]

    def come(self) -> int:
        """Bytes of what is wanted that have come so far."""
        if self.index is None:
            return 0
        missing: list[StoredFile] = self.missing()
        come = self.size - sum(file.size for file in missing)
        for file in missing:
            with suppress(OSError):  # nothing of it yet, or it has just become whole
                come += self.part(file).stat().st_size
        return come

    def parse(self, data: bytes) -> WeightIndex:
        try:
            return parse_index(data, self._model)
        except NoModel as error:
            raise DataError(str(error)) from None

    def spans(self, name: str) -> list[Span]:
        if self._given is not None and name != WEIGHTS_NAME and not (self.folder / name).exists():
            return self._given.spans(name)
        found: list[Span] = super().spans(name)
        return found

    def survey(self, local: Path | None) -> list[str]:
        """Look at every layer that is here or in the model's folder `local`; what is wrong with some, a line each.

        Raises DataError when `local` holds another model; OSError.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.have.clear()
        self.index, self._given = None, None
        if local is not None:
            self._take_folder(local)
        else:
            self._take_kept()
        if self.index is None:
            return []
        troubles = []
        for file in self.weights.files:
            if not (self.folder / file.name).exists():
                continue
            try:
                check_file(self.folder, file)
                self.have[file.name] = self.folder / file.name
            except DataError as error:
                troubles.append(str(error))
                (self.folder / file.name).unlink()
        return troubles

    def spoiled(self, names: Sequence[str]) -> None:
        """Whoever computes with them says that they have other hashes now. Nothing more is read from the model's
        folder."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        self._given = None
        self.have = {name: path for name, path in self.have.items() if (self.folder / name).exists()}

    def _take_folder(self, local: Path) -> None:
        try:
            given = open_checkpoint(local, self._model)
            index = given.index()
        except (NoModel, EOFError) as error:
            raise DataError(str(error)) from None
        if index.sha256 != self.sha256:
            raise DataError(
                f"the weights in {local} are {index.sha256[:12]}, and the run began with {self.sha256[:12]}; leave "
                "--from out, and others' are taken"
            )
        self.take_index(index.encode())
        self._given = given
        self.have |= dict.fromkeys((file.name for file in index.files), local)

    def _take_kept(self) -> None:
        path = self.folder / WEIGHTS_NAME
        try:
            with path.open("rb") as file:
                data = file.read(INDEX_BYTES_MAX + 1)
        except FileNotFoundError:
            return
        if hashlib.sha256(data).hexdigest() != self.sha256:
            path.unlink()
            return
        self.index = self.parse(data)
        self.have[WEIGHTS_NAME] = path


class FirstLayers(Fetching):
    """`run` is a task of the node. `changed` is called when it is known which layers there are."""

    store: LayerStore

    def __init__(
        self, store: LayerStore, model: ModelConfig, stages: int, local: Path | None,
        sources: Callable[[], Sequence[ShardSource]], chance: Random, tell: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`sources`: whom to ask now."""
        super().__init__(store, sources, chance, tell)
        self.surveyed = False
        self.trouble = ""
        """Why no stage can begin here."""
        self._model, self._stages, self._local, self._changed = model, stages, local, changed
        self._asked = trio.Event()

    @property
    def frozen(self) -> bool:
        """Some weights are not trained, and so are needed whenever a stage is filled."""
        return not self._model.trains_all

    async def run(self) -> None:
        """Find the index, and fetch what is asked for, until cancelled."""
        try:
            await self._survey()
            await self._find_index()
            self.surveyed = True
            self._changed()
            while True:
                if self.store.missing():
                    names = ", ".join(file.name for file in self.store.missing())
                    self._tell(f"{names} of the model that the run began with come from peers")
                    await self._fetch_until(self._survey)
                    self.store.unlock()
                self._asked = trio.Event()
                if not self.store.missing():
                    await self._asked.wait()
        except DataError as error:
            self.trouble = str(error)
        except OSError as error:
            self.trouble = f"cannot keep first weights in {self.store.folder}: {error.strerror}"
        finally:
            self.store.unlock()
        self._tell(self.trouble)

    async def layers(self, stage: int) -> dict[str, Any]:
        """What the compute process needs to begin a stage, once it is here: {dtype, layers: [[sha256, [[path, start,
        size], …]], …]}, in order. Raises LayersMissing when nothing comes any more."""
        names = layer_names(self._model, self._stages, stage)
        self.store.wanted |= set(names)
        self._asked.set()
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
        hashes = {file.name: file.sha256 for file in self.store.weights.files}
        rows = [[hashes[name], [list(span) for span in self.store.spans(name)]] for name in names]
        return {"dtype": self.store.weights.dtype, "layers": rows}

    def spoiled(self, stage: int) -> None:
        """Its layers were not what their hashes say when they were read. They are fetched, and the model's folder,
        which has changed, is left alone."""
        self._local = None
        self.store.spoiled(layer_names(self._model, self._stages, stage))

    async def _survey(self) -> None:
        look: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        for trouble in await look(self.store.survey, self._local, abandon_on_cancel=True):
            self._tell(trouble)

    async def _find_index(self) -> None:
        """From peers, when it is not here."""
        if self.store.index is None:
            self._tell("waits for a peer that has the model that the run begins with; or pass its folder with --from")
        idle = 0
        while self.store.index is None:
            await self._round(self._sources())
            await trio.sleep(PAUSES_SECONDS[min(idle, len(PAUSES_SECONDS) - 1)])
            idle += 1


def first_layers(
    config: JoinConfig, opener: StreamOpener, look: Callable[[], Picture], speaking: Speaking,
    changed: Callable[[], None],
) -> FirstLayers:  # fmt: skip
    """Those of the run that a node joins."""
    manifest, chance = config.manifest, Random(secrets.randbits(64))
    model, sha256 = ModelConfig.of(manifest.model), manifest.start.weights
    store = LayerStore(shards_folder(config.home, sha256), sha256, model, config.data_bytes_max)
    return FirstLayers(
        store, model, manifest.pipeline.stages, config.start,
        lambda: peers_to_ask(look(), manifest.run_id, opener, chance), chance,
        lambda text: speaking.say("model", text), changed,
    )  # fmt: skip
