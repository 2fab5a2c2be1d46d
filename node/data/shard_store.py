"""The token shards of a run that are on this machine (file_store.py).

They lie in the home's folder `data/`, one folder for each corpus; what the volunteer passed with --data is linked
there, not copied.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ftnode.models.data import DataError, NotThere, Unread
from ftnode.models.shards import INDEX_BYTES_MAX, INDEX_NAME, Index, StoredFile, check_file, parse_index, read_index
from ftnode.node.data.file_store import FileStore, StoredIndex, Survey


class ShardStore(FileStore):
    """All files of the corpus are wanted."""

    index_name = INDEX_NAME
    index_bytes_max = INDEX_BYTES_MAX
    what = "shards"

    def __init__(self, folder: Path, sha256: str, vocabulary: int, bytes_max: int) -> None:
        """`sha256`, `vocabulary`: the manifest's. `bytes_max`: larger corpora are not fetched."""
        super().__init__(folder, sha256, bytes_max)
        self._vocabulary = vocabulary

    def parse(self, data: bytes) -> StoredIndex:
        return self._checked(parse_index(data))

    def look(self, local: Path | None) -> Survey:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if local is not None and local.resolve() == self.folder.resolve():
            local = None
        for place in (self.folder, local):
            if place is None or not (place / INDEX_NAME).exists():
                continue
            if (index := self._find_index(place, ours=place is self.folder)) is not None:
                have, troubles = {INDEX_NAME: place / INDEX_NAME}, []
                for file in index.files:
                    path, trouble = self._find(file, local)
                    if path is not None:
                        have[file.name] = path
                    elif trouble:
                        troubles.append(trouble)
                return Survey(index, have, tuple(troubles))
        return Survey()

    def _find_index(self, place: Path, ours: bool) -> Index | None:
        """The run's index, if it is there. `ours`: in the home, where anything else is removed."""
        try:
            index, found = read_index(place)
        except NotThere:
            if ours:
                return None
            with (place / INDEX_NAME).open("rb"):  # the OSError of a disk that does not give it out now is tried again
                raise
        except DataError:
            if not ours:
                raise
            (place / INDEX_NAME).unlink()
            return None
        if found != self.sha256 and ours:
            (place / INDEX_NAME).unlink()
            return None
        if found != self.sha256:
            raise DataError(f"the index in {place} is {found[:12]}, the run's is {self.sha256[:12]}")
        self._checked(index)
        if not ours:
            self._link(place / INDEX_NAME)
        return index

    def _checked(self, index: Index) -> Index:
        own = index.tokenizer
        if own.vocabulary > self._vocabulary:
            raise DataError(
                f"the tokenizer {own.name} has {own.vocabulary} tokens, the run's model {self._vocabulary}; "
                "make the manifest anew with: ftnode run init --data"
            )
        return index

    def _find(self, file: StoredFile, local: Path | None) -> tuple[Path | None, str]:
        """One file whose hash fits, or what is wrong with it; "" where there is none."""
        trouble = ""
        for place in (self.folder, local):
            if place is None or not (place / file.name).exists():
                continue
            try:
                check_file(place, file)
            except DataError as error:
                trouble = str(error)
                if place is self.folder and not isinstance(error, Unread):
                    (place / file.name).unlink()
                continue
            if place is not self.folder:
                self._link(place / file.name)
            return place / file.name, ""
        return None, trouble

    def _link(self, path: Path) -> None:
        link = self.folder / path.name
        with suppress(FileNotFoundError):
            link.unlink()  # it leads nowhere
        link.symlink_to(path.absolute())
