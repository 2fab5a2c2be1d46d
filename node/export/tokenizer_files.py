"""Tokenizer files that `AutoTokenizer.from_pretrained` loads without code of ours, of the tokenizer that made the data.

The index of token shards has the tokenizer's hash and the token that ends a document, and the manifest has the index's
hash; so no other tokenizer is exported, however alike. Bytes are tokens as they are: a BPE model without merges over
the 256 letters with which GPT-2 writes bytes, each with its byte as id. Only NUL, which ends documents, is written as
itself, so that it is found as the special token that it is.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ftnode.models.data import SEPARATOR, DataError
from ftnode.models.shards import INDEX_NAME, TokenizerFacts, parse_index, read_index
from ftnode.node.data.tokenizers import CONFIG_NAME, ByteTokenizer
from ftnode.node.home.files import json_bytes
from ftnode.node.home.paths import typed_path
from ftnode.node.owner.join_options import shards_folder
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import PeerError, UserError

TOKENIZER_NAME: Final = "tokenizer.json"
SPECIAL_NAME: Final = "special_tokens_map.json"
COPIED: Final = (TOKENIZER_NAME, CONFIG_NAME, SPECIAL_NAME, "added_tokens.json", "chat_template.jinja")
FILE_BYTES_MAX: Final = 256 << 20
BYTES: Final = "bytes"
END_OF_TEXT: Final = SEPARATOR.decode()
NO_INPUT: Final = 66
UNFIT: Final = 65


@dataclass(frozen=True, slots=True)
class KnownTokenizer:
    """What is here of the tokenizer that made the tokens of a run. `facts`: what the data's index says; None while it
    was not seen. `files`: contents by name. `given`: what --tokenizer said."""

    manifest: Manifest
    given: str | None = None
    facts: TokenizerFacts | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def missing(self) -> str:
        """The file of the data that is needed next, or ""."""
        if self.facts is None:
            return INDEX_NAME
        return TOKENIZER_NAME if self.facts.bytes and TOKENIZER_NAME not in self.files else ""

    def with_file(self, name: str, data: bytes) -> KnownTokenizer:
        """`data` is what a peer gave as the file that was missing.

        Raises PeerError when it does not have its hash; UserError (65) when the tokenizer is not what was given, or
        does not fit the model.
        """
        expected = self.manifest.data.sha256 if self.facts is None else self.facts.sha256
        if hashlib.sha256(data).hexdigest() != expected:
            raise PeerError(f"its {name} is not that of the run's data")
        if self.facts is not None:
            return replace(self, files={**self.files, name: data})
        try:
            return replace(self, facts=parse_index(data).tokenizer).checked()
        except DataError as error:
            raise UserError(f"the index of the run's data cannot be read by this ftnode: {error}", UNFIT) from None

    def checked(self) -> KnownTokenizer:
        """This one. Raises UserError (65) unless what was given is the tokenizer of the index."""
        facts, file = self.facts, self.files.get(TOKENIZER_NAME)
        if file is not None:
            _check_fits(file, f"the tokenizer {self.given}", self.manifest)
        if facts is None:
            return self
        if facts.vocabulary > self.manifest.model.vocabulary:
            raise UserError(
                f"the tokenizer of the run's data has {facts.vocabulary} tokens, its model "
                f"{self.manifest.model.vocabulary}; the manifest and its data do not fit together", UNFIT,
            )  # fmt: skip
        if not facts.bytes and file is not None:
            raise UserError("the tokens of the run's data are bytes; leave --tokenizer out", UNFIT)
        if facts.bytes and self.given == BYTES:
            raise UserError("the tokens of the run's data are not bytes; leave --tokenizer out", UNFIT)
        if facts.bytes and file is not None and hashlib.sha256(file).hexdigest() != facts.sha256:
            raise UserError(
                f"the tokenizer {self.given} is not the one that made the run's data, whose sha256 is "
                f"{facts.sha256[:12]}…; leave --tokenizer out, and the run's own is taken", UNFIT,
            )  # fmt: skip
        return self


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Contents by name, and the token id behind every document."""

    contents: dict[str, bytes]
    end: int


def byte_letters() -> list[str]:
    """GPT-2's letter for every byte: printable ones are themselves, the others come from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_tokenizer() -> dict[str, Any]:
    """`tokenizer.json` of the bytes."""
    letters = [END_OF_TEXT, *byte_letters()[1:]]
    special = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": SEPARATOR[0], "content": END_OF_TEXT, **special}],
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
            "vocab": {letter: byte for byte, letter in enumerate(letters)},
            "merges": [],
        },
    }


def tokenizer_config(manifest: Manifest) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": manifest.model.context,
        "clean_up_tokenization_spaces": False,
    }


def find_tokenizer(manifest: Manifest, given: str | None, home: Path) -> KnownTokenizer:
    """What is here: `given`, which is `bytes`, a tokenizer.json, or a folder that has one or is the run's shards; and
    the shards of the run in the home. Texts are bytes.

    Raises UserError: 66 when what was given cannot be read, 65 when it is not the run's.
    """
    known = KnownTokenizer(manifest, given)
    path = None if given in (None, BYTES) else typed_path(str(given))
    if manifest.data.kind != "shards":
        return replace(known, facts=ByteTokenizer().facts, files=_read_given(path, False)).checked()
    own = shards_folder(home, manifest.data.sha256)
    facts = (path and _index_facts(path, manifest)) or _index_facts(own, manifest)
    known = replace(known, facts=facts, files=_read_given(path, facts is not None)).checked()
    if path is None and known.missing == TOKENIZER_NAME and (own / TOKENIZER_NAME).is_file():
        try:
            return known.with_file(TOKENIZER_NAME, _read(own / TOKENIZER_NAME))
        except PeerError:
            return known  # it is damaged; the run's holders have it
    return known


def tokenizer_files(known: KnownTokenizer) -> TokenizerFiles:
    """Of a tokenizer of which nothing is missing. Raises UserError (65)."""
    facts, manifest = known.facts, known.manifest
    assert facts is not None and not known.missing
    if not facts.bytes:
        config = json_bytes(tokenizer_config(manifest) | {"eos_token": END_OF_TEXT})
        return TokenizerFiles({TOKENIZER_NAME: json_bytes(byte_tokenizer()), CONFIG_NAME: config}, facts.separator)
    names = _check_fits(known.files[TOKENIZER_NAME], "the run's tokenizer", manifest)
    if facts.separator not in names:
        raise UserError(f"the run's tokenizer has no token {facts.separator}, which ends its documents", UNFIT)
    files = {CONFIG_NAME: json_bytes(tokenizer_config(manifest)), **known.files}
    for name in (CONFIG_NAME, SPECIAL_NAME):
        if name in files:
            files[name] = json_bytes(_object(files[name], name) | {"eos_token": names[facts.separator]})
    return TokenizerFiles(files, facts.separator)


def _read_given(path: Path | None, may_lack: bool) -> dict[str, bytes]:
    """Contents by name. `may_lack`: a folder of shards, whose tokens may be bytes."""
    if path is None:
        return {}
    if not path.is_dir():
        return {TOKENIZER_NAME: _read(path)}
    files = {name: _read(path / name) for name in COPIED if (path / name).is_file()}
    if TOKENIZER_NAME not in files and not may_lack:
        raise UserError(f"there is no {TOKENIZER_NAME} in {path}; pass the file itself, or leave it out", NO_INPUT)
    return files


def _index_facts(folder: Path, manifest: Manifest) -> TokenizerFacts | None:
    """None when these are not the shards of the run."""
    try:
        index, sha256 = read_index(folder)
    except DataError:
        return None
    return index.tokenizer if sha256 == manifest.data.sha256 else None


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"the {name} beside the tokenizer is no JSON object; pass the tokenizer.json itself", UNFIT)
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(
            f"cannot read the tokenizer {path}: {error.strerror}; leave --tokenizer out, and the run's own is taken",
            NO_INPUT,
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise UserError(f"{path} is larger than {FILE_BYTES_MAX} bytes; this is no tokenizer", UNFIT)
    return data


def _check_fits(data: bytes, who: str, manifest: Manifest) -> dict[int, str]:
    """Tokens by id. Raises UserError (65) when this is no tokenizer, or knows tokens that the model does not."""
    try:
        found = json.loads(data)
        vocabulary = found["model"]["vocab"]
        pairs = (
            vocabulary.items() if isinstance(vocabulary, dict) else [(row[0], n) for n, row in enumerate(vocabulary)]
        )
        names = {int(number): str(name) for name, number in pairs}
        names |= {int(token["id"]): str(token["content"]) for token in found.get("added_tokens") or ()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise UserError(f"{who} is no tokenizer.json of the `tokenizers` library", UNFIT) from None
    if max(names, default=-1) >= manifest.model.vocabulary:
        raise UserError(
            f"{who} has ids up to {max(names)}, the run's model {manifest.model.vocabulary} tokens; it is "
            "another run's", UNFIT,
        )  # fmt: skip
    return names
