"""Tokenizer files that `AutoTokenizer.from_pretrained` loads without code of ours.

Bytes are tokens as they are: a BPE model without merges over the 256 letters with which GPT-2 writes bytes, each with
its byte as id. Other tokenizers are copied from where the data was made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ftnode.node.checkpoint import json_bytes
from ftnode.protocol.errors import UserError
from ftnode.protocol.manifest import Manifest

TOKENIZER_NAME: Final = "tokenizer.json"
CONFIG_NAME: Final = "tokenizer_config.json"
COPIED: Final = (TOKENIZER_NAME, CONFIG_NAME, "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
FILE_BYTES_MAX: Final = 256 << 20
BYTES: Final = "bytes"


def byte_letters() -> list[str]:
    """GPT-2's letter for every byte: printable ones are themselves, the others come from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_tokenizer() -> dict[str, Any]:
    """`tokenizer.json` of the bytes."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(byte_letters())},
            "merges": [],
        },
    }


def tokenizer_config(manifest: Manifest) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": manifest.model.context,
        "clean_up_tokenization_spaces": False,
    }


def tokenizer_files(manifest: Manifest, given: str | None) -> dict[str, bytes]:
    """Contents by name. `given`: `bytes`, a tokenizer.json, or a folder that has one; None: bytes, when the run's data
    are texts.

    Raises UserError: 64 when it must be given, 66 when it cannot be read, 65 when it does not fit the model.
    """
    if given is None and manifest.data.kind not in ("standard-library", "files"):
        raise UserError(
            "the run's data has a tokenizer of its own; pass --tokenizer with its tokenizer.json, or the folder with "
            "it, or bytes"
        )
    if given in (None, BYTES):
        return {TOKENIZER_NAME: json_bytes(byte_tokenizer()), CONFIG_NAME: json_bytes(tokenizer_config(manifest))}
    assert given is not None
    path = Path(given).expanduser()
    if path.is_dir():
        files = {name: _read(path / name) for name in COPIED if (path / name).is_file()}
    else:
        files = {TOKENIZER_NAME: _read(path)}
    if TOKENIZER_NAME not in files:
        raise UserError(f"there is no {TOKENIZER_NAME} in {path}; pass the file itself, or --tokenizer bytes", 66)
    _check_fits(files[TOKENIZER_NAME], path, manifest)
    return {CONFIG_NAME: json_bytes(tokenizer_config(manifest)), **files}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"cannot read the tokenizer {path}: {error.strerror}", 66) from None
    if len(data) > FILE_BYTES_MAX:
        raise UserError(f"{path} is larger than {FILE_BYTES_MAX} bytes; this is no tokenizer", 65)
    return data


def _check_fits(data: bytes, path: Path, manifest: Manifest) -> None:
    """Raises UserError (65) when this is no tokenizer, or knows tokens that the model does not."""
    try:
        found = json.loads(data)
        vocabulary = found["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        largest = max([-1, *ids, *(token["id"] for token in found.get("added_tokens") or ())])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is no tokenizer.json of the `tokenizers` library", 65) from None
    if largest >= manifest.model.vocabulary:
        raise UserError(
            f"the tokenizer {path} has ids up to {largest}, the run's model {manifest.model.vocabulary} tokens; it is "
            "another run's", 65,
        )  # fmt: skip
