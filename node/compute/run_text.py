"""The text that a run trains on, as the head reads it: whether it is here, and batches of it.

Of shards the node knows which are here, and that their hashes fit (node/data/shards.py). They are mapped when they are
first used. Any other text is hashed at the start, and read when the head first needs it. Who has which text, and how
a batch is drawn: docs/explanation/data.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ftnode.models.data import Corpus, DataError, corpus_hash, load_corpus, training_batch, validation_batch
from ftnode.models.faults import Misuse
from ftnode.models.shards import is_shard_folder, open_shards
from ftnode.node.compute.config import ComputeConfig


class RunText:
    """Of one compute process. `look` before any batch of a text that is no shards. `progress` is called after each
    piece that is read."""

    def __init__(self, config: ComputeConfig, progress: Callable[[], None] = lambda: None) -> None:
        self._config, self._progress = config, progress
        self._corpus: Corpus | None = None
        self._sha256 = ""
        """Of a text, as it was at the start."""

    def look(self) -> tuple[str, str]:
        """(hash, "") of the corpus when it is the run's, ("", why not) otherwise. The text itself is not kept."""
        kind, data = self._config.data_kind, self._config.data
        if kind == "shards":
            return "", ""
        if kind == "files" and not data:
            return "", "the run trains on a text of its own; pass --data with the run's text"
        if data and is_shard_folder(Path(data)):
            return "", f"{data} holds token shards, and the run trains on text"
        try:
            self._sha256 = corpus_hash(data, self._progress)
        except DataError as error:
            return "", str(error)
        if self._config.corpus not in ("", self._sha256):
            todo = "pass --data with the run's text" if data else "use the Python version of the run's author"
            return "", f"the corpus here is {self._sha256[:12]}, the run's is {self._config.corpus[:12]}; {todo}"
        return self._sha256, ""

    def batch(self, step: int, microbatch: int, validation: bool) -> NDArray[Any]:
        """Tokens [B, T + 1]: inputs are all but the last of each row, targets all but the first. Raises DataError, and
        Misuse where the text is not the run's."""
        config, corpus = self._config, self._opened()
        if validation:
            return validation_batch(corpus, config.seed, microbatch, config.sequences, config.context)
        return training_batch(corpus, config.seed, step, microbatch, config.sequences, config.context)

    def _opened(self) -> Corpus:
        config = self._config
        if self._corpus is None and config.data_kind == "shards":
            self._corpus = open_shards(config.data, config.corpus)
        if self._corpus is None:
            text = load_corpus(config.data, self._progress)
            if text.sha256 != self._sha256 or config.corpus not in ("", text.sha256):
                raise Misuse("the corpus is not the run's, or has changed since the start", 0)
            self._corpus = text
        return self._corpus
