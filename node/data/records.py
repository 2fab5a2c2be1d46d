"""Sources whose documents are records: JSON lines, Parquet files, and Hugging Face datasets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

from ftnode.models.data import DataError
from ftnode.node.data.sources import (
    Piece,
    Position,
    Seen,
    Source,
    SourceAway,
    decoded,
    find_files,
    record_part,
    record_pieces,
    split_texts,
)

LINE_BYTES_MAX: Final = 64 << 20
"""Of a line of JSON; it is held in memory as a whole."""
ROWS_AT_ONCE: Final = 64
HUB: Final = "hf:"
_HUB: Final = re.compile(r"hf:([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?@([0-9a-f]{40})")


class JsonLines:
    """A file with a JSON object in each line, of which one field is the document. Empty lines are passed over.
    Positions are bytes, lines and records."""

    def __init__(self, seen: Seen, field: str) -> None:
        self.seen, self.field = seen, field
        self.label, self.size = seen.label, seen.size

    @property
    def identity(self) -> list[object]:
        return ["jsonl", self.label, self.seen.size, self.seen.modified, self.field]

    def read(self, position: Position = (0,)) -> Iterator[Piece]:
        at, number, record = position if len(position) == 3 else (0, 0, 0)
        with self.seen.reading() as file:
            file.seek(at)
            while line := file.readline(LINE_BYTES_MAX + 1):
                at, number = at + len(line), number + 1
                place = f"{self.seen.path}, line {number}"
                if len(line) > LINE_BYTES_MAX:
                    raise DataError(f"{place}: longer than {LINE_BYTES_MAX >> 20} MiB; cut the document")
                if line.isspace():
                    continue
                text = self._text(decoded(line, place), place)
                record += 1
                yield from record_pieces(text, record_part(self.label, record - 1), (at, number, record))
            self.seen.check(file)

    def _text(self, line: str, place: str) -> str:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: no JSON ({error}); mend the line, or leave it out") from None
        if not isinstance(found, dict):
            raise DataError(f"{place}: no JSON object")
        return _field(found, self.field, place)


class Parquet:
    """A Parquet file, of which one column is the document. Positions are rows."""

    def __init__(self, seen: Seen, field: str) -> None:
        self.seen, self.field = seen, field
        self._parquet = _extra("pyarrow.parquet", f"to read {seen.path}")
        self._errors = (OSError, ValueError, import_module("pyarrow").ArrowException)
        """What pyarrow raises; not all of its own are one of the others."""
        with seen.open() as file:
            opened = self._open(file)
            columns = opened.schema_arrow.names
            self._groups = [opened.metadata.row_group(n).num_rows for n in range(opened.num_row_groups)]
        if field not in columns:
            raise DataError(f"{seen.path} has no column {field!r}; pick one with --field: {', '.join(columns)[:200]}")
        self.label, self.size = seen.label, sum(self._groups)

    @property
    def identity(self) -> list[object]:
        return ["parquet", self.label, self.seen.size, self.seen.modified, self.field]

    def _open(self, file: Any) -> Any:
        try:
            opened = self._parquet.ParquetFile(file)
            _ = opened.schema_arrow.names  # which a column of a type that it does not know makes fail
            return opened
        except self._errors as error:
            raise DataError(f"{self.seen.path} is no Parquet file: {str(error)[:200]}") from None

    def read(self, position: Position = (0,)) -> Iterator[Piece]:
        with self.seen.open() as file:
            opened, row = self._open(file), 0
            for group, rows in enumerate(self._groups):
                if row + rows <= position[0]:
                    row += rows
                    continue
                for text in self._texts(opened, group):
                    row += 1
                    if row > position[0]:
                        place = f"{self.seen.path}, row {row}"
                        part = record_part(self.label, row - 1)
                        yield from record_pieces(_field({self.field: text}, self.field, place), part, (row,))
            self.seen.check(file)

    def _texts(self, opened: Any, group: int) -> Iterator[Any]:
        try:
            for batch in opened.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=[self.field]):
                yield from batch.column(0).to_pylist()
        except self._errors as error:
            raise DataError(f"cannot read {self.seen.path}: {str(error)[:200]}; it may be damaged") from None


class HubDataset:
    """A dataset of the Hugging Face hub at one commit, its split `train`, streamed. Positions are rows.

    `name`: NAME or OWNER/NAME, or with a configuration NAME:CONFIGURATION.
    """

    size = 0

    def __init__(self, name: str, configuration: str | None, revision: str, field: str) -> None:
        self.name, self.configuration, self.revision, self.field = name, configuration, revision, field
        self.label = f"{name}:{configuration or ''}"
        self._datasets = _extra("datasets", f"to read {HUB}{name}")

    @property
    def identity(self) -> list[object]:
        return ["hub", self.label, self.revision, self.field]

    def read(self, position: Position = (0,)) -> Iterator[Piece]:
        row = position[0]
        for record in self._records(row):
            row += 1
            text = _field(record, self.field, f"{HUB}{self.name}, row {row}")
            yield from record_pieces(text, record_part(self.label, row - 1), (row,))

    def _records(self, skipped: int) -> Iterator[Any]:
        try:
            opened = self._datasets.load_dataset(
                self.name, self.configuration, revision=self.revision, split="train", streaming=True
            )
            yield from opened.skip(skipped) if skipped else opened
        except Exception as error:  # whatever a library for all formats and a network raises
            if isinstance(error, DataError):
                raise
            cause = " ".join(str(error).split())[:200]
            raise SourceAway(
                f"cannot read {HUB}{self.name}: {cause}; check the name, the revision, the network, and call again"
            ) from None


def find_sources(given: Sequence[str], field: str) -> list[Source]:
    """What was typed as SOURCE..., in reading order. Raises DataError."""
    files = find_files([one for one in given if not one.startswith(HUB)])
    texts = [seen for seen in files if not _is_records(seen)]
    parted: dict[str, list[Source]] = {}
    for part in split_texts(texts) if texts else ():
        parted.setdefault(part.label, []).append(part)
    by_label = {seen.label: seen for seen in files}
    sources: list[Source] = []
    for label, seen in sorted(by_label.items()):
        if seen.path.suffix == ".parquet":
            sources.append(Parquet(seen, field))
        elif _is_records(seen):
            sources.append(JsonLines(seen, field))
        else:
            sources += parted[label]
    return sources + [_hub(one, field) for one in given if one.startswith(HUB)]


def _is_records(seen: Seen) -> bool:
    return seen.path.suffix in (".jsonl", ".ndjson", ".parquet")


def _hub(given: str, field: str) -> HubDataset:
    match = _HUB.fullmatch(given)
    if match is None:
        raise DataError(
            f"{given} is not hf:NAME@REVISION; the revision is a commit's 40 digits, since branches and tags move"
        )
    return HubDataset(match[1], match[2], match[3], field)


def _field(record: Any, field: str, place: str) -> str:
    text = record.get(field)
    if isinstance(text, str):
        return text
    if text is None and field in record:
        return ""  # null is no document, as an empty text is none
    if field in record:
        raise DataError(f"{place}: field {field!r} is no text; pick another with --field")
    known = ", ".join(map(str, record))[:200]
    raise DataError(f"{place}: no field {field!r}; pick one with --field: {known}")


def _extra(module: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        library = module.split(".")[0]
        raise DataError(f"{library} is missing {purpose}; install it with: pip install 'ftnode[data]'") from None
