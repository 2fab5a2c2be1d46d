"""A Hugging Face checkpoint of the run's model, written stage by stage as the weights come.

A safetensors file is 8 bytes length, a JSON header that says which tensor lies where, and the tensors without gaps:
our stages lie in their flat buffers the same way (models/parameters.py), so the header is written first and the bytes
go behind it as they are. All is written into a folder beside the final one, which gets its name when everything is on
the disk (`finish`, then `publish`); only then may anybody be told that the model is here.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from ftnode.models.config import ModelConfig
from ftnode.models.first_weights import Checkpoint as FirstCheckpoint
from ftnode.models.huggingface import NoModel, huggingface_config
from ftnode.models.parameters import places, stage_shapes
from ftnode.models.rounding import EXPORT_DTYPES
from ftnode.models.safetensors_header import safetensors_header
from ftnode.models.state_plan import StatePlan
from ftnode.node.export.adapters import ADAPTERS, ADAPTERS_CONFIG, adapters_config, write_adapters
from ftnode.node.export.widened import plain, write_widened
from ftnode.node.home.files import json_bytes, sync_folder
from ftnode.node.home.paths import whole_path
from ftnode.node.home.size import size_text
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import names_of

CANNOT_CREATE: Final = 73
INDEX_NAME: Final = "model.safetensors.index.json"
NARROW: Final = ".narrow"
"""Of a file with what came of a stage, until it is widened."""


def stage_sizes(manifest: Manifest) -> tuple[int, ...]:
    """Bytes of weights, by stage, as holders have them: of those that are trained."""
    stages = manifest.pipeline.stages
    plan = StatePlan(ModelConfig.of(manifest.model), stages, manifest.optimiser.kind)
    return tuple(plan.size(stage, "weights") for stage in range(stages + 1))


def checkpoint_bytes(manifest: Manifest, dtype: str = "", adapters: bool = False) -> int:
    """Of all tensors of the checkpoint: more than the stages have where the model has a subspace, or a part of it is
    frozen. `dtype`: one of EXPORT_DTYPES, or that of the model. `adapters`: of these alone."""
    model = plain(ModelConfig.of(manifest.model))
    each = EXPORT_DTYPES[dtype or model.precision][1]
    return sum(stage_sizes(manifest)) // model.number_bytes * each if adapters else each * model.total_parameters()


def without(manifest: Manifest, left_out: Sequence[int]) -> Manifest:
    """What the model is like without these block stages: it has fewer stages, and fewer layers."""
    model, stages = manifest.model, manifest.pipeline.stages
    layers = model.layers - len(left_out) * (model.layers // stages)
    return replace(
        manifest,
        model=replace(model, layers=layers),
        pipeline=replace(manifest.pipeline, stages=stages - len(left_out)),
    )


def described(manifest: Manifest, end: int, dtype: str = "") -> dict[str, Any]:
    """`config.json`. `end`: the token behind every document."""
    model, start = plain(ModelConfig.of(manifest.model)), manifest.start
    return huggingface_config(model, end, dtype or manifest.model.precision, start.architecture, start.positions)


def generation_config(manifest: Manifest, end: int) -> dict[str, Any]:
    """`generation_config.json`. The token behind every document ends a text, or the context does."""
    return {"do_sample": True, "temperature": 0.8, "max_length": manifest.model.context, "eos_token_id": end}


class Checkpoint:
    """A folder that is not there yet. Made by `creating`."""

    def __init__(
        self, draft: Path, out: Path, manifest: Manifest, dtype: str = "", base: FirstCheckpoint | None = None
    ) -> None:
        self._draft, self._out, self._whole, self._base = draft, out, manifest, base
        self._dtype = dtype or manifest.model.precision
        self._left_out: tuple[int, ...] = ()
        self._take_shape(manifest)
        self.adapters = bool(self._model.lora) and base is None
        """Only these are written, in PEFT's format."""
        self._files: dict[int, BinaryIO] = {}
        self._names: dict[str, str] = {}
        """Tensor → file."""

    def _take_shape(self, manifest: Manifest) -> None:
        self._manifest, self._model = manifest, ModelConfig.of(manifest.model)
        self._stages = manifest.pipeline.stages

    def leave_out(self, stages: tuple[int, ...]) -> None:
        """The checkpoint is of a model without these stages: later ones are numbered as if there were no others. What
        was opened before is void.

        Raises UserError (69) where a part of the model is frozen: that part is the base's, layer by layer.
        """
        if stages and not self._model.trains_all:
            raise UserError(
                f"the run goes on without {names_of(stages)}, and trains a part of a "
                "model that has it; wait until it is rebuilt (ftnode status), then export again",
                69,
            )
        if stages != self._left_out:
            for file in self._files.values():
                _close_void(file)
                Path(file.name).unlink()
            self._files, self._names, self._left_out = {}, {}, stages
            self._take_shape(without(self._whole, stages))

    def open_stage(self, stage: int) -> BinaryIO:
        """The file of a stage, with its header; the weights go behind it. Anew when it was open before.

        Raises UserError (74).
        """
        stage -= sum(other < stage for other in self._left_out)
        model, name = self._model, self._name(stage)
        entries, _ = places(*stage_shapes(model, self._stages, stage))
        if stage in self._files:
            _close_void(self._files[stage])
        file: BinaryIO
        try:
            if self.changes:
                file = self._files[stage] = (self._draft / f"{name}{NARROW}").open("w+b")
            else:
                file = self._files[stage] = (self._draft / name).open("wb")
                file.write(safetensors_header(entries, model.number_bytes))
        except OSError as error:
            raise UserError(f"cannot write {self._draft / name}: {error.strerror}", 74) from None
        self._names |= dict.fromkeys(entries, name)
        return file

    @property
    def changes(self) -> bool:
        """What came of a stage is not yet what its file has to hold."""
        model = self._model
        return bool(model.subspace) or self._dtype != model.precision or not model.trains_all

    def _name(self, stage: int) -> str:
        return f"model-{stage + 1:05}-of-{self._stages + 1:05}.safetensors"

    def _widen(self) -> None:
        """Of a model with a subspace or a frozen part, or in other numbers: the files that people load, out of what
        came."""
        for stage, narrow in self._files.items():
            narrow.seek(0)
            wide = (self._draft / self._name(stage)).open("wb")
            write_widened(narrow, wide, self._model, self._stages, stage, self._dtype, self._base)
            narrow.close()
            (self._draft / f"{self._name(stage)}{NARROW}").unlink()
            self._files[stage] = wide

    def _join_adapters(self) -> None:
        """All stages' in one file."""
        narrow = self._files
        self._files = {0: (self._draft / ADAPTERS).open("wb")}
        write_adapters(narrow, self._files[0], self._model, self._stages, self._dtype)
        for stage, file in narrow.items():
            file.close()
            (self._draft / f"{self._name(stage)}{NARROW}").unlink()

    def _texts(self, end: int) -> dict[str, Any]:
        """JSON that lies beside the tensors."""
        if self.adapters:
            return {ADAPTERS_CONFIG: adapters_config(self._model)}
        return {
            INDEX_NAME: {
                "metadata": {"total_size": checkpoint_bytes(self._manifest, self._dtype)},
                "weight_map": dict(sorted(self._names.items())),
            },
            "config.json": described(self._manifest, end, self._dtype),
            "generation_config.json": generation_config(self._manifest, end),
        }

    def finish(self, files: Mapping[str, bytes], end: int) -> None:
        """All stages are written; `files` by name come beside them. `end`: the token behind every document.

        Raises UserError (74).
        """
        texts = self._texts(end)
        try:
            if self.changes:
                self._join_adapters() if self.adapters else self._widen()
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
                file.close()
            for name, content in {**{name: json_bytes(text) for name, text in texts.items()}, **files}.items():
                with (self._draft / name).open("wb") as beside:
                    beside.write(content)
                    beside.flush()
                    os.fsync(beside.fileno())
            sync_folder(self._draft)
        except (NoModel, EOFError) as error:  # the folder of the model that the run goes on from
            raise UserError(f"cannot write the whole model: {error}", 65) from None
        except OverflowError as error:
            raise UserError(f"{error}; export with --dtype bfloat16 or float32", 65) from None
        except OSError as error:
            raise UserError(f"cannot write the model down: {error.strerror}", 74) from None

    def publish(self) -> None:
        """What `finish` wrote gets its final name, and stays whatever comes after.

        Raises UserError: 73 when the name is taken meanwhile or cannot be given, 74 when the disk does not confirm it.
        """
        try:
            self._draft.rename(self._out)  # onto an empty folder too; not onto one that has been filled meanwhile
        except OSError as error:
            raise UserError(
                f"cannot create {self._out}: {error.strerror}; choose another folder", CANNOT_CREATE
            ) from None
        try:
            sync_folder(self._out.parent)
        except OSError as error:
            raise UserError(f"{self._out} is written, but not safely on the disk: {error.strerror}", 74) from None

    def close(self) -> None:
        """Of a checkpoint that is published `finish` has closed all files. The others are void."""
        for file in self._files.values():
            _close_void(file)


def _close_void(file: BinaryIO) -> None:
    """What a full disk did not take is still in a file's buffer, and closing tries once more to write it."""
    with suppress(OSError):
        file.close()


@contextmanager
def creating(
    out: Path, manifest: Manifest, dtype: str = "", base: FirstCheckpoint | None = None
) -> Iterator[Checkpoint]:
    """A checkpoint that becomes the folder `out` when it is published within the block, and is nothing otherwise.
    `base`: the model that the run goes on from, where a part of it is frozen; of adapters without it these alone are
    written.

    Raises UserError (73) when `out` is there and not an empty folder, cannot be created, or the disk has no room.
    """
    out = whole_path(out).resolve()
    check_is_free(out)
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        draft.mkdir()
    except OSError as error:
        raise UserError(f"cannot create {out}: {error.strerror}; choose another folder", CANNOT_CREATE) from None
    checkpoint = Checkpoint(draft, out, manifest, dtype, base)
    try:
        needed = checkpoint_bytes(manifest, dtype, checkpoint.adapters)
        if checkpoint.changes:
            needed += sum(stage_sizes(manifest))
        if free < needed:
            raise UserError(
                f"the model has {size_text(needed)}, and {out.parent} has room for {size_text(free)}; choose another "
                "disk",
                CANNOT_CREATE,
            )
        yield checkpoint
    finally:
        checkpoint.close()
        shutil.rmtree(draft, ignore_errors=True)  # what was published has another name


def check_is_free(out: Path) -> None:
    """Raises UserError (73) unless `out` is missing or an empty folder that another one can take the place of."""
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
        mounted = not taken and os.path.ismount(out)
    except OSError as error:
        raise UserError(f"cannot read {out}: {error.strerror}; choose another folder", CANNOT_CREATE) from None
    if mounted:  # a draft beside it is on another disk, and cannot get its name
        raise UserError(
            f"{out} cannot be made anew, another disk is mounted there; choose a folder in it", CANNOT_CREATE
        )
    if taken:
        raise UserError(f"{out} is there and not empty; choose a new folder, nothing is overwritten", CANNOT_CREATE)
