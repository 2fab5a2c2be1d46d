"""A manifest for a run that goes on from a model that exists, out of the model's folder. No torch here."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from ftnode.models.config import ModelConfig
from ftnode.models.data import DataError
from ftnode.models.first_weights import Checkpoint, open_checkpoint
from ftnode.models.huggingface import NoModel, read_config
from ftnode.models.shards import read_index
from ftnode.node.data.corpus import CorpusFacts
from ftnode.node.data.tokenizers import BYTES
from ftnode.node.export.tokenizer_files import FILE_BYTES_MAX, TOKENIZER_NAME, byte_tokenizer
from ftnode.node.home.files import json_bytes
from ftnode.node.manifests.presets import PRESETS
from ftnode.protocol.manifest.parse import Batch, Manifest, Model, Run, Start
from ftnode.protocol.words.errors import UserError

ERRORS = "export_continuing"

UNFIT: Final = 65
NO_INPUT: Final = 66
STAGES_USUAL: Final = 4
CONTEXT_USUAL: Final = 1024
TOKENS_OF_A_MICROBATCH: Final = 4096
RATE: Final = 2e-5
"""Ten times less than such models were trained with at their end would hardly move them; ten times more forgets."""
ADAPTERS_RATE: Final = 2e-4
"""Adapters begin with nothing and forget nothing, so that they bear ten times as much (Hu et al. 2021, table 12)."""


def described_model(
    folder: Path, context: int | None, stages: int | None, train: str = "all", lora: int = 0
) -> Manifest:
    """The model of a folder in a manifest, all but its weights' hash and its data. Headers are read, no numbers.
    `train`, `lora`: as ModelConfig has them.

    Raises UserError: 64 for a part that the model does not have, 66 for a folder that is not there, 65 for a model
    that cannot be taken.
    """
    try:
        found = read_config(folder)
        open_checkpoint(folder, found.model)
        tokenizer = _tokenizer(folder)
    except NoModel as error:
        raise UserError(f"cannot go on from {folder}: {error}", UNFIT) from None
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror}", NO_INPUT) from None
    longest = found.model.context
    if context is not None and context > longest:
        raise UserError(f"--context {context}: the model was made for {longest} tokens at most", UNFIT)
    model = replace(found.model, context=context or min(longest, CONTEXT_USUAL))
    try:
        model = replace(model, train=train, lora=lora, lora_alpha=2 * lora)
    except ValueError as error:
        raise UserError(str(error)) from None
    base = PRESETS["small"]
    return replace(
        base,
        run=Run(name="continued", seed=1, steps=1000),
        model=Model(**{entry.name: getattr(model, entry.name) for entry in fields(Model)}),
        optimiser=replace(
            base.optimiser, learning_rate=ADAPTERS_RATE if lora else RATE, betas=(0.9, 0.95),
            weight_decay=0.0 if lora else 0.1, warmup_steps=100,
        ),
        batch=Batch(microbatches=16, sequences=max(1, TOKENS_OF_A_MICROBATCH // model.context)),
        pipeline=replace(base.pipeline, stages=_stages(model.layers, stages)),
        start=Start(
            tokenizer=hashlib.sha256(tokenizer).hexdigest(), architecture=found.architecture, positions=longest,
        ),
    )  # fmt: skip


def with_weights(manifest: Manifest, folder: Path) -> Manifest:
    """With the hash of the folder's weights, of which every byte is read. Raises UserError (65, 66)."""
    try:
        index = open_checkpoint(folder, ModelConfig.of(manifest.model)).index()
    except (NoModel, EOFError) as error:
        raise UserError(f"cannot go on from {folder}: {error}", UNFIT) from None
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror}", NO_INPUT) from None
    return replace(manifest, start=replace(manifest.start, weights=index.sha256))


def opened_base(manifest: Manifest, folder: Path | None) -> Checkpoint | None:
    """The model that a run goes on from, for an export of the whole model; None where it is not needed, or adapters are
    exported. Every byte is read. Raises UserError: 64 for a folder that is missing or not needed, 65, 66."""
    if manifest.model.trains_all:
        if folder is not None:
            raise UserError("the whole model is trained, and the swarm has all of it; leave --from out")
        return None
    if folder is None:
        if manifest.model.lora:
            return None
        raise UserError(
            f"the swarm has only what it trains, {manifest.model.train}; pass --from with the model that it goes on "
            "from"
        )
    try:
        found = open_checkpoint(folder, ModelConfig.of(manifest.model))
        index = found.index()
    except (NoModel, EOFError) as error:
        raise UserError(f"cannot take the model in {folder}: {error}", UNFIT) from None
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror}", NO_INPUT) from None
    if index.sha256 != manifest.start.weights:
        raise UserError(
            f"the weights in {folder} are {index.sha256[:12]}, and the run began with {manifest.start.weights[:12]}",
            UNFIT,
        )
    return found


def check_tokens(manifest: Manifest, facts: CorpusFacts, data: Path | None, folder: Path) -> None:
    """Raises UserError (65) unless the corpus has the model's tokens."""
    bytes_are_tokens = manifest.start.tokenizer == hashlib.sha256(json_bytes(byte_tokenizer())).hexdigest()
    made = BYTES if bytes_are_tokens else folder / TOKENIZER_NAME
    advice = f"make shards with: ftnode data build TEXT --tokenizer {made} --out SHARDS, and pass --data SHARDS"
    if facts.kind != "shards":
        if not bytes_are_tokens:
            raise UserError(f"the tokens of a text are bytes, and the model's are not; {advice}", UNFIT)
        return
    assert data is not None
    try:
        tokenizer = read_index(data)[0].tokenizer
    except DataError as error:
        raise UserError(f"cannot use the data: {error}", UNFIT) from None
    fits = tokenizer.sha256 == manifest.start.tokenizer if tokenizer.bytes else bytes_are_tokens
    if not fits:
        raise UserError(f"the shards in {data} were made by another tokenizer than the model's; {advice}", UNFIT)
    if tokenizer.vocabulary > manifest.model.vocabulary:
        raise UserError(
            f"the tokenizer has {tokenizer.vocabulary} tokens, the model {manifest.model.vocabulary}; get the model's "
            "own", UNFIT,
        )  # fmt: skip


def _stages(layers: int, asked: int | None) -> int:
    fitting = [number for number in range(1, layers + 1) if layers % number == 0]
    if asked is not None and asked not in fitting:
        raise UserError(
            f"{layers} layers cannot be divided equally among {asked} stages; --stages may be "
            f"{', '.join(map(str, fitting))}", 64,
        )  # fmt: skip
    return asked or max(number for number in fitting if number <= STAGES_USUAL)


def _tokenizer(folder: Path) -> bytes:
    """Raises NoModel, OSError."""
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        raise NoModel(f"there is no {TOKENIZER_NAME} in it")
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise NoModel(f"its {TOKENIZER_NAME} is larger than {FILE_BYTES_MAX} bytes")
    return data
