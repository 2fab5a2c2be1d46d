"""The weights that a run began with, for volunteers whose stage nobody has trained yet.

    survey (--from FOLDER, the home's folder) → the index, from there or from peers → layers when a stage needs them

Who passes the model's folder with --from reads and lends from it, without a copy. Everybody else fetches the layers of
its stages, keeps them, and lends them on. Layers of other stages go when there is no room for them any more. A layer
that is here is hashed again by whoever computes with it (models/initial.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from ftnode.models.config import ModelConfig
from ftnode.models.data import DataError, Unread
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
from ftnode.models.shards import check_file
from ftnode.node.data.fetching import PAUSES_SECONDS, Fetching
from ftnode.node.data.shard_sources import ShardSource, peers_to_ask
from ftnode.node.data.shard_store import NoRoom, ShardStore
from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.join_options import JoinConfig, shards_folder
from ftnode.node.ports import LayersMissing, StreamOpener
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.errors import UserError

ERRORS = "first_layers"

ASK_SECONDS: Final = 1.0
"""Until it is looked again whether the layers of a stage are here."""
USERS_NAME: Final = "users"
"""A file that each node has a shared lock on that uses the folder."""
STILL_SECONDS: Final = 300.0
"""Without a byte of what a stage needs, and the stage is left to somebody else."""


class AnotherModel(DataError):
    """The folder that was passed with --from has weights of another model than the run's, or unusable ones."""


class LayerStore(ShardStore):
    """Layers of the model that the run began with, in the home's folder or in the model's own."""

    index_name = WEIGHTS_NAME
    index_bytes_max = INDEX_BYTES_MAX
    what = "first weights"

    def __init__(self, folder: Path, sha256: str, model: ModelConfig, bytes_max: int) -> None:
        super().__init__(folder, sha256, model.vocabulary, bytes_max)
        self.wanted: set[str] = set()
        """Names of the layers that somebody waits for."""
        self.staying: Callable[[], set[str]] = set
        """Names of the layers that stay here beside those."""
        self._model = model
        self._given: Checkpoint | None = None
        self._users = -1

    @property
    def weights(self) -> WeightIndex:
        """Once there is an index."""
        assert isinstance(self.index, WeightIndex)
        return self.index

    @property
    def size(self) -> int:
        """Bytes in the home's folder when all that is wanted has come."""
        missing = {file.name for file in self.missing()}
        here = {file.name for file in self.weights.files if (self.folder / file.name).exists()}
        return sum(file.size for file in self.weights.files if file.name in missing | here)

    def missing(self) -> list[Any]:
        return [file for file in super().missing() if file.name in self.wanted]

    def come(self) -> int:
        """Bytes of what is wanted that have come so far."""
        index, come = self.index, 0  # a survey, in a thread, puts another one there
        if index is None:
            return 0
        for file in (file for file in index.files if file.name in self.wanted):
            if file.name in self.have:
                come += file.size
                continue
            with suppress(OSError):  # nothing of it yet, or it has just become whole
                come += max((part.stat().st_size for part in self.parts(file)), default=0)
        return come

    def check_room(self) -> None:
        """Where there is none, layers of stages that this node neither holds nor begins go. Raises NoRoom."""
        spare = self._spare()
        while True:
            try:
                super().check_room()
                return
            except DataError as error:
                if not spare or not self._remove(spare.pop()):
                    raise NoRoom(str(error)) from None

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

        Raises AnotherModel when `local` holds one; OSError.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._users < 0:
            self._users = os.open(self.folder / USERS_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._users, fcntl.LOCK_SH)
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
                if not isinstance(error, Unread):
                    (self.folder / file.name).unlink()
        return troubles

    def spoiled(self, names: Sequence[str]) -> None:
        """Whoever computes with them says that they have other hashes now. Nothing more is read from the model's
        folder."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        self._given = None
        self.have = {name: path for name, path in self.have.items() if (self.folder / name).exists()}

    def close(self) -> None:
        """This node uses the folder no more."""
        if self._users >= 0:
            os.close(self._users)
            self._users = -1

    def _spare(self) -> list[Path]:
        """What is in the home's folder and not needed, in the order in which it may go last: the rest of what never
        became whole is of no use to anybody."""
        needed = self.wanted | self.staying()
        files = [file for file in self.weights.files if file.name not in needed]
        paths = [self.folder / file.name for file in files] + [part for file in files for part in self.parts(file)]
        return [path for path in paths if path.exists()]

    def _remove(self, path: Path) -> bool:
        """Unless another node of the home, which may need it, uses the folder too."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
            self.have.pop(path.name, None)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            alone = False
        finally:
            fcntl.flock(self._users, fcntl.LOCK_SH)
        return alone

    def _take_folder(self, local: Path) -> None:
        try:
            given = open_checkpoint(local, self._model)
            index = given.index()
        except (NoModel, EOFError) as error:
            raise AnotherModel(str(error)) from None
        if index.sha256 != self.sha256:
            raise AnotherModel(
                f"the weights in {local} are {index.sha256[:12]}, and the run began with {self.sha256[:12]}"
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
        changed: Callable[[], None], held: Callable[[], Collection[int]], fail: Callable[[UserError], None],
    ) -> None:  # fmt: skip
        """`sources`: whom to ask now. `held`: the stages whose layers stay here. `fail`: the owner has to mend this."""
        super().__init__(store, sources, chance, tell)
        store.staying = lambda: {name for stage in held() for name in layer_names(model, stages, stage)}
        self.surveyed = False
        self._model, self._stages, self._local, self._changed = model, stages, local, changed
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
                    await self._persist(lambda: self._fetch_until(self._survey))
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
        self.store.wanted |= set(names)
        self._asked.set()
        try:
            await self._all_here(names)
        finally:
            self.store.wanted -= set(names)
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
