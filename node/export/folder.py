"""What an export writes beside the weights: the tokenizer of the run's data, the model card, where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from ftnode.node.export.checkpoint import Checkpoint
from ftnode.node.export.client import TakenModel
from ftnode.node.export.model_card import model_card, provenance
from ftnode.node.export.search import Dialer
from ftnode.node.export.tokenizer import fetch_tokenizer
from ftnode.node.export.tokenizer_files import KnownTokenizer, tokenizer_files
from ftnode.node.home.files import json_bytes
from ftnode.node.links.addresses import PeerAddress


class ExportFolder:
    """`complete`, then the stages, then `keep`."""

    def __init__(self, checkpoint: Checkpoint, out: Path, known: KnownTokenizer, manifest_text: str) -> None:
        self._checkpoint, self._out, self._known = checkpoint, out, known
        self._manifest_text = manifest_text

    async def complete(
        self, dialer: Dialer, peers: Sequence[PeerAddress], seconds: float, tell: Callable[[str], None]
    ) -> None:
        """Get what is missing of the tokenizer, before any weights come. Raises UserError (69, 65)."""
        self._known = await fetch_tokenizer(dialer, peers, self._known, seconds, tell)
        tokenizer_files(self._known)

    def open_stage(self, stage: int) -> BinaryIO:
        return self._checkpoint.open_stage(stage)

    def leave_out(self, stages: tuple[int, ...]) -> None:
        self._checkpoint.leave_out(stages)

    def keep(self, model: TakenModel) -> None:
        """The weights are written; so is the rest, and the folder gets its name. Raises UserError (73, 74)."""
        manifest, tokenizer = self._known.manifest, tokenizer_files(self._known)
        files = {
            **tokenizer.contents,
            "manifest.toml": self._manifest_text.encode(),
            "README.md": model_card(manifest, model, self._out.name or str(self._out)).encode(),
            "provenance.json": json_bytes(provenance(manifest, model)),
        }
        self._checkpoint.finish(files, tokenizer.end)
        self._checkpoint.publish()
