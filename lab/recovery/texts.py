"""Four kinds of held-out text that a machine with Python has, to see what a model that was rebuilt has kept.

Python's standard library's sources that training has not seen (the corpus's own held-out files) are cut by kind: `code`
(what is left of them), `docstrings and comments` (string literals that stand alone, and comments), and `tests` (files
below folders called test or tests). `headers` are the C headers of this Python, which no training file resembles. The
paper's four are web texts (its Table 3); there is no network here.
"""

from __future__ import annotations

import io
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from ftnode.models.data import LIBRARY_EXCLUDES, SEPARATOR, Bytes, Corpus, DataError, validation_batch, validation_names

KINDS: Final = ("code", "prose in code", "tests", "C headers")
TEXT_SEED: Final = 2
BYTES_MAX: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Text:
    """`windows`: batches of [sequences, context + 1], the same for every model. None are empty."""

    kind: str
    windows: tuple[Bytes, ...]


def held_out_texts(microbatches: int, sequences: int, context: int) -> tuple[tuple[Text, ...], tuple[str, ...]]:
    """The kinds that this machine has, and a line for each that it lacks or has too little of."""
    contents = _contents()
    found, missing = [], []
    for kind in KINDS:
        corpus = Corpus(_array(b""), _array(contents[kind][:BYTES_MAX]), "")
        try:
            windows = tuple(
                validation_batch(corpus, TEXT_SEED, number, sequences, context) for number in range(microbatches)
            )
        except DataError:
            missing.append(f"{kind}: this machine has {len(contents[kind])} bytes of it, too few; skipped")
            continue
        found.append(Text(kind, windows))
    return tuple(found), tuple(missing)


@cache
def _contents() -> dict[str, bytes]:
    """By kind. Reading and cutting takes seconds."""
    paths = sysconfig.get_paths()
    library = Path(paths["stdlib"])
    sources = dict(_library_sources(library))
    parts: dict[str, list[bytes]] = {kind: [] for kind in KINDS}
    for name in sorted(validation_names(list(sources))) if sources else ():
        source = sources[name]
        if {"test", "tests", "idle_test"} & set(Path(name).parts):
            parts["tests"].append(source)
        else:
            code, prose = split_prose(source)
            parts["code"].append(code)
            parts["prose in code"].append(prose)
    headers = Path(paths["include"])
    parts["C headers"] = [path.read_bytes() for path in sorted(headers.rglob("*.h"))] if headers.is_dir() else []
    return {kind: SEPARATOR.join(texts) for kind, texts in parts.items()}


def _library_sources(library: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) as the corpus chooses its files, so that its held-out files are these."""
    for path in library.rglob("*.py"):
        parts = path.relative_to(library).parts
        hidden = any(part.startswith(".") or part in LIBRARY_EXCLUDES for part in parts[:-1])
        if not hidden and path.is_file() and not path.is_symlink() and SEPARATOR not in (content := path.read_bytes()):
            yield "/".join(parts), content


def split_prose(source: bytes) -> tuple[bytes, bytes]:
    """(code, docstrings and comments). Of a file that does not tokenize all is code."""
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return source, b""
    lines = source.splitlines(keepends=True)
    prose: set[int] = set()
    fresh = True
    for token in tokens:
        alone = fresh and token.type == tokenize.STRING
        if alone or (token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()):
            prose.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING):
            fresh = token.type == tokenize.NEWLINE
    return (
        b"".join(line for number, line in enumerate(lines, 1) if number not in prose),
        b"".join(line for number, line in enumerate(lines, 1) if number in prose),
    )


def _array(text: bytes) -> Bytes:
    return np.frombuffer(text, dtype=np.uint8)
