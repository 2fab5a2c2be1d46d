"""The layers of the model that a run began with which are on this machine (file_store.py).

They lie in the home's folder `data/`, one folder for each model, or in the model's own folder that the volunteer passed
with --from: from there they are read and lent without a copy. Only layers that somebody waits for are wanted. Layers of
other stages go when there is no room for them any more, unless another node of the home uses the folder, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ftnode.models.config import ModelConfig
from ftnode.models.data import DataError, Unread
from ftnode.models.first_weights import (
    INDEX_BYTES_MAX,
    WEIGHTS_NAME,
    Checkpoint,
    Span,
    WeightIndex,
    open_checkpoint,
    parse_index,
)
from ftnode.models.huggingface import NoModel
from ftnode.models.shards import StoredFile, check_file
from ftnode.node.data.file_store import FileStore, NoRoom, Survey

USERS_NAME: Final = "users"
"""A file that each node has a shared lock on that uses the folder."""


class AnotherModel(DataError):
    """The folder that was passed with --from has weights of another model than the run's, or unusable ones."""


@dataclass(frozen=True, slots=True)
class LayerSurvey(Survey):
    """`given`: the model in the owner's folder, of which everything is here."""

    given: Checkpoint | None = None


class LayerStore(FileStore):
    """`close` when the node uses the folder no more."""

    index_name = WEIGHTS_NAME
    index_bytes_max = INDEX_BYTES_MAX
    what = "first weights"

    def __init__(self, folder: Path, sha256: str, model: ModelConfig, bytes_max: int) -> None:
        super().__init__(folder, sha256, bytes_max)
        self.staying: Callable[[], set[str]] = set
        """Names of the layers that stay here beside those that are wanted."""
        self._model = model
        self._waits: list[frozenset[str]] = []
        """What each of those who wait wants; several may wait for one layer."""
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

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the layers that somebody waits for."""
        return frozenset[str]().union(*self._waits)

    @contextmanager
    def waiting_for(self, names: Sequence[str]) -> Iterator[None]:
        """They are wanted meanwhile."""
        wait = frozenset(names)
        self._waits.append(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def missing(self) -> list[StoredFile]:
        wanted = self.wanted
        return [file for file in super().missing() if file.name in wanted]

    def come(self) -> int:
        """Bytes of what is wanted that have come so far."""
        if self.index is None:
            return 0
        come, wanted = 0, self.wanted
        for file in (file for file in self.index.files if file.name in wanted):
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
        path = self.have.get(name)
        if self._given is not None and path is not None and path.is_dir():
            return self._given.spans(name)
        return super().spans(name)

    def look(self, local: Path | None) -> LayerSurvey:
        """As FileStore. Raises AnotherModel when `local` holds one; OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._users < 0:
            self._users = os.open(self.folder / USERS_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._users, fcntl.LOCK_SH)
        given = None if local is None else self._model_in(local)
        index = self._index_kept()
        if index is None:
            return LayerSurvey()
        have = {} if local is None else dict.fromkeys((file.name for file in index.files), local)
        have[WEIGHTS_NAME] = self.folder / WEIGHTS_NAME
        troubles = []
        for file in index.files:
            if not (self.folder / file.name).exists():
                continue
            try:
                check_file(self.folder, file)
                have[file.name] = self.folder / file.name
            except DataError as error:
                troubles.append(str(error))
                if not isinstance(error, Unread):
                    (self.folder / file.name).unlink()
        return LayerSurvey(index, have, tuple(troubles), given)

    def take_over(self, survey: Survey) -> None:
        assert isinstance(survey, LayerSurvey)
        super().take_over(survey)
        self._given = survey.given

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

    def _model_in(self, local: Path) -> Checkpoint:
        """The model of the run in the owner's folder. Its index is kept in the home's."""
        try:
            given = open_checkpoint(local, self._model)
            index = given.index()
        except (NoModel, EOFError) as error:
            raise AnotherModel(str(error)) from None
        if index.sha256 != self.sha256:
            raise AnotherModel(
                f"the weights in {local} are {index.sha256[:12]}, and the run began with {self.sha256[:12]}"
            )
        self._keep_index(index.encode())
        return given

    def _index_kept(self) -> WeightIndex | None:
        """In the home's folder; a file of its name with another hash is removed."""
        path = self.folder / WEIGHTS_NAME
        try:
            with path.open("rb") as file:
                data = file.read(INDEX_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            path.unlink()
            return None
        return self.parse(data)

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
