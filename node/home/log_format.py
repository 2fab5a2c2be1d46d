"""`node.log`: lines for people, or JSON lines for whoever collects logs (`--log-format json`). It is bounded, and a
disk that takes none of it is said once: the node goes on."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

TEXT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"
FORMATS: Final = ("text", "json")


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (seconds since 1970 UTC), `level`, `logger`, `message`, and `exception` where there is
    one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class LogFile(RotatingFileHandler):
    """`say` hears once that it cannot be written, and again after it could. The file before the last is removed. Raises
    OSError when it cannot be opened."""

    def __init__(self, path: Path, bytes_max: int, say: Callable[[str], None]) -> None:
        super().__init__(path, maxBytes=bytes_max, backupCount=1, encoding="utf-8", errors="backslashreplace")
        self._path, self._say_trouble = path, say
        self._trouble = self._said = False

    def emit(self, record: logging.LogRecord) -> None:
        self._trouble = False
        super().emit(record)
        self._said = self._said and self._trouble

    def handleError(self, record: logging.LogRecord) -> None:
        """logging would print a traceback for every line."""
        error = sys.exc_info()[1]
        self._trouble = True
        if not self._said:
            self._said = True
            reason = getattr(error, "strerror", None) or str(error)
            self._say_trouble(f"cannot write {self._path}: {reason}; it goes on without those lines")


def formatter(name: str) -> logging.Formatter:
    """One of FORMATS."""
    return JsonFormatter() if name == "json" else logging.Formatter(TEXT)
