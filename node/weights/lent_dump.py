"""A file for the audit, of weights that are lent. The lending goes on where it cannot be written, as on a full disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


class LentDump:
    """`failed` is called once, when it cannot be written any more. Then there is no such file."""

    def __init__(self, path: Path, failed: Callable[[OSError], None]) -> None:
        self.path, self._failed = path, failed
        self._file: BinaryIO | None = None
        with self._or_give_up():
            self._file = path.open("wb")

    @property
    def name(self) -> str:
        """Of the file; "": there is none."""
        return "" if self._file is None else self.path.name

    def write(self, content: memoryview) -> None:
        if self._file is not None:
            with self._or_give_up():
                self._file.write(content)

    def close(self) -> None:
        if self._file is not None:
            with self._or_give_up():
                self._file.close()  # the last of it is written now

    @contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
                with suppress(OSError):
                    self.path.unlink()
            self._file = None
            self._failed(error)
