"""`ftnode generate`: an exported folder, loaded with our own model, goes on with a text."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import torch

from ftnode.models.generation import WholeModel, continuation, load
from ftnode.models.huggingface import NoModel, read_config
from ftnode.node.export.adapters import ADAPTERS_CONFIG
from ftnode.node.export.tokenizer_files import TOKENIZER_NAME, byte_tokenizer
from ftnode.node.home.files import json_bytes
from ftnode.protocol.words.errors import UserError

ERRORS = "compute_generate"

log = logging.getLogger(__name__)
Pieces = Iterator[str]
Encode = Callable[[str], list[int]]
Decode = Callable[[Iterator[int]], Pieces]


def generate(
    folder: Path, prompt: str, count: int, temperature: float, seed: int | None, device: str = "cpu"
) -> Pieces:
    """Text that follows `prompt` up to the end of its document or `count` tokens, in pieces as they are drawn.

    Raises UserError: 66 for a folder or files that are missing, 65 for files that are no model of ours or a prompt
    that is no text, or has no tokens, 69 for a device that is not there.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError("the prompt is not in UTF-8, which the model's tokens are made of; convert it", 65) from None
    if not (folder / "config.json").is_file():
        if (folder / ADAPTERS_CONFIG).is_file():
            whole = "ftnode export RUN OUT --from MODEL"
            raise UserError(f"{folder} has adapters alone; get the whole model with: {whole}", 66)
        raise UserError(f"there is no exported model in {folder}; get one with: ftnode export RUN {folder}", 66)
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {device}: torch finds no CUDA here; leave it out", 69)
    try:
        model = load(folder, device)
    except NoModel as error:
        raise UserError(str(error), 65) from None
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror}", 66) from None
    encode, decode = text_coding(folder, model)
    tokens = encode(prompt)
    if not tokens:
        raise UserError("the prompt has no tokens; give at least a letter", 65)
    ends = end_tokens(folder)
    drawn = continuation(model, tokens, count, temperature, seed)
    return decode(takewhile(lambda token: token not in ends, drawn))


def end_tokens(folder: Path) -> frozenset[int]:
    """Those that end a text, by `config.json`; earlier exports name none."""
    return frozenset(read_config(folder).ends)


def text_coding(folder: Path, model: WholeModel) -> tuple[Encode, Decode]:
    """How a text becomes tokens, and tokens a text. Bytes need no library."""
    path = folder / TOKENIZER_NAME
    if path.is_file() and path.read_bytes() == json_bytes(byte_tokenizer()):
        return lambda text: list(text.encode()), decode_bytes
    if not path.is_file():
        raise UserError(f"there is no {path}; export the model again", 66)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError(
            "this model's tokens are not bytes; install what reads them with: pip install tokenizers", 69
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        log.info("%s", path, exc_info=True)
        raise UserError(f"{path} is no tokenizer: {error}", 65) from None
    if tokenizer.get_vocab_size() > model.config.vocabulary:
        raise UserError(f"{path} has more tokens than the model; export the model again", 65)

    def decode(tokens: Iterator[int]) -> Pieces:
        """What a token adds may depend on those before it; an unfinished letter waits for its rest."""
        known: list[int] = []
        shown = ""
        for token in tokens:
            known.append(token)
            text: str = tokenizer.decode(known)
            if not text.endswith("�"):
                yield text[len(shown) :]
                shown = text
        yield tokenizer.decode(known)[len(shown) :]

    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids), decode


def decode_bytes(tokens: Iterator[int]) -> Pieces:
    """A token that is no byte, in a vocabulary that has more of them, is shown as what is missing."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        yield decoder.decode(bytes([token])) if token < 256 else "�"
    yield decoder.decode(b"", final=True)
