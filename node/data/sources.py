"""Documents out of files, piece by piece, from any place that was noted before: what `ftnode data build` reads.

A piece is at most PIECE_BYTES of one document, so that memory does not grow with the document; a longer one is cut
behind a line's end where there is one. Which part a document goes to depends on names and numbers alone:

    text files           a document each. Of several, one in twenty by the hash of its name is for validation
                         (models/data.py); a single one is cut, its last twentieth is
    records of the rest  a document each. Of every twenty in a row one is for validation, which one the hash of the
                         source's name and of the twenty's number says
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ftnode.models.data import SEPARATOR, VALIDATION_ONE_IN, DataError, NotThere, validation_names
from ftnode.node.home.paths import typed_path

PIECE_BYTES: Final = 256 << 10
FILES_MAX: Final = 5_000_000
Position = tuple[int, ...]
"""Where a source is read on from; its first number is how much of the source's `size` lies before it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a document. `last`: its end. `after`: the position behind it, None within a record."""

    text: str
    size: int
    """Bytes that it has in UTF-8."""
    part: str
    last: bool
    after: Position | None


class SourceAway(DataError):
    """It cannot be read now; another time it may."""


class Source(Protocol):
    """A file, or a part of one."""

    label: str
    """Its name relative to what was given."""
    size: int
    """In bytes or in records: what positions are counted in."""

    @property
    def identity(self) -> list[object]:
        """Plain values that differ when the source does."""
        ...

    def read(self, position: Position = (0,)) -> Iterator[Piece]:
        """Raises DataError when it is not what it should be, or not any more what it was."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was when it was found."""

    path: Path
    label: str
    size: int
    modified: int
    """Nanoseconds."""

    def open(self) -> BinaryIO:
        """Raises DataError when the file is gone or has changed."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise NotThere(f"cannot read {self.path}: {error.strerror}; check the file and its rights") from None
        try:
            self.check(file)
        except DataError:
            file.close()
            raise
        return file

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        """As `open`. Raises SourceAway when the disk does not give out what is read within."""
        with self.open() as file:
            try:
                yield file
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise SourceAway(f"cannot read {self.path}: {reason}; call again when it can be read") from None

    def check(self, file: BinaryIO) -> None:
        """Raises DataError when the file is not what it was."""
        now = os.fstat(file.fileno())
        if (now.st_size, now.st_mtime_ns) != (self.size, self.modified):
            raise self.changed()

    def changed(self) -> DataError:
        return DataError(f"{self.path} changed while it was read; build again when it is at rest")


class TextSource:
    """Bytes `start` to `end` of a text file, as one document."""

    def __init__(self, seen: Seen, part: str, start: int = 0, end: int | None = None) -> None:
        self.seen, self.part = seen, part
        self.start, self.end = start, seen.size if end is None else end
        self.label, self.size = seen.label, self.end - self.start

    @property
    def identity(self) -> list[object]:
        return ["text", self.label, self.seen.size, self.seen.modified, self.start, self.end, self.part]

    def read(self, position: Position = (0,)) -> Iterator[Piece]:
        at = self.start + position[0]
        with self.seen.reading() as file:
            file.seek(at)
            while at < self.end:
                wanted = min(PIECE_BYTES, self.end - at)
                data = file.read(wanted)
                if len(data) < wanted:
                    raise self.seen.changed()
                if at + len(data) < self.end:
                    data = data[: place_to_cut(data)]
                    file.seek(at + len(data))
                text = decoded(data, f"{self.seen.path}, byte {at}")
                at += len(data)
                if at == self.end:
                    self.seen.check(file)
                yield Piece(text, len(data), self.part, at == self.end, (at - self.start,))


def decoded(data: bytes, place: str) -> str:
    """Raises DataError when it is no text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: not UTF-8 at the byte {error.start} from there; convert it, or leave it out"
        ) from None
    if SEPARATOR in data:
        raise DataError(f"{place}: not text, it holds a zero byte; leave it out")
    return text


def place_to_cut(data: bytes) -> int:
    """Where a piece of a longer text ends: behind its last line, or word, or at least character. Never 0."""
    for end in (b"\n", b" "):
        found = data.rfind(end)
        if found >= 0:
            return found + 1
    return max(1, character_start(data, len(data)))


def character_start(data: bytes, at: int) -> int:
    """`at`, or up to three bytes before it where a character of UTF-8 would be cut."""
    for back in range(1, min(4, at) + 1):
        byte = data[at - back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return at if length <= back else at - back
    return at


def record_pieces(text: str, part: str, after: Position) -> Iterator[Piece]:
    """The pieces of a record's text; zero characters, which stand for nothing, are left out. An
    empty one is no document: its piece ends none."""
    data = text.replace("\0", "").encode(errors="replace")
    at = 0
    while len(data) - at > PIECE_BYTES:
        cut = place_to_cut(data[at : at + PIECE_BYTES])
        yield Piece(data[at : at + cut].decode(), cut, part, False, None)
        at += cut
    rest = data[at:]
    yield Piece(rest.decode(), len(rest), part, bool(rest), after)


def record_part(label: str, number: int) -> str:
    """Of record `number` of a source, from 0."""
    twenty, place = divmod(number, VALIDATION_ONE_IN)
    return "validation" if _chosen(label, twenty) == place else "training"


@lru_cache(maxsize=16)
def _chosen(label: str, twenty: int) -> int:
    digest = hashlib.blake2b(f"{label}:{twenty}".encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % VALIDATION_ONE_IN


def find_files(given: Sequence[str]) -> list[Seen]:
    """The files that were given, and those in given folders by name; hidden ones, links and empty ones in folders are
    left out. Labels of several sources begin with the source's number. Raises NotThere and DataError."""
    found: list[Seen] = []
    for number, one in enumerate(given):
        root = typed_path(one)
        prefix = f"{number}/" if len(given) > 1 else ""
        try:
            if root.is_dir():
                here = [_seen(root / name, prefix + name) for name in _names(root)]
                here = [seen for seen in here if seen.size]
            else:
                here = [_seen(root, prefix + root.name)]
        except OSError as error:
            raise NotThere(f"cannot read {error.filename or root}: {error.strerror}; check the path") from None
        if not here or not any(seen.size for seen in here):
            raise DataError(f"{root} is empty; give a file with text, or a folder of them")
        found += here
        if len(found) > FILES_MAX:
            raise DataError(f"{root} has more than {FILES_MAX} files; join some of them")
    return found


def split_texts(files: Sequence[Seen]) -> list[Source]:
    """Text files with their parts; a single one becomes two sources. Raises DataError."""
    if len(files) == 1:
        seen = files[0]
        cut = seen.size - seen.size // VALIDATION_ONE_IN
        with seen.reading() as file:
            file.seek(max(0, cut - 4))
            before = file.read(min(4, cut))
        cut -= len(before) - character_start(before, len(before))
        return [TextSource(seen, "training", 0, cut), TextSource(seen, "validation", cut)]
    held_out = validation_names([seen.label for seen in files])
    return [TextSource(seen, "validation" if seen.label in held_out else "training") for seen in files]


def _seen(path: Path, label: str) -> Seen:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path} is no file; give files and folders")
    return Seen(path.absolute(), label, status.st_size, status.st_mtime_ns)


def _names(root: Path) -> list[str]:
    def give_up(error: OSError) -> None:
        raise error

    names = []
    for folder, folders, files in os.walk(root, onerror=give_up):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            file = Path(folder, name)
            if not name.startswith(".") and stat.S_ISREG(file.lstat().st_mode):
                names.append(file.relative_to(root).as_posix())
    return sorted(names)
