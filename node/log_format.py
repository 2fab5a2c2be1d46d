"""`node.log` as lines for people, or as JSON lines for whoever collects logs (`--log-format json`)."""

from __future__ import annotations

import json
import logging
from typing import Final

TEXT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"
FORMATS: Final = ("text", "json")


class JsonLines(logging.Formatter):
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


def formatter(name: str) -> logging.Formatter:
    """One of FORMATS."""
    return JsonLines() if name == "json" else logging.Formatter(TEXT)
