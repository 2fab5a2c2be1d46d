"""A tokenizer for a corpus: byte-level byte-pair encoding (Sennrich et al., 2016; as GPT-2 has it), by Hugging Face's
`tokenizers`. It encodes any text, since each of the 256 bytes is a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ftnode.node.data.sources import Source

END_OF_TEXT: Final = "<|endoftext|>"
VOCABULARY_MIN: Final = 257
"""The bytes, and the end of a text."""


def train(sources: Sequence[Source], vocabulary: int) -> tuple[str, int]:
    """The text of a tokenizer.json and how many tokens it has: at most `vocabulary`, fewer where the text has no more
    pairs. Validation documents are left out. Raises DataError."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(_texts(sources), trainer)
    return str(tokenizer.to_str(pretty=True)), int(tokenizer.get_vocab_size())


def _texts(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for piece in source.read():
            if piece.part == "training" and piece.text:
                yield piece.text
