"""Manifests: TOML text to a checked `Manifest`, and back to commented text.

Errors are for the person who edits the file: the line, what is wrong, what is allowed. The first one is enough.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from difflib import get_close_matches
from math import isfinite
from typing import Any, Final, NoReturn

from ftnode.protocol.manifest.boundary import BLOCK_BITS, BLOCK_MIN, block_numbers
from ftnode.protocol.manifest.plain_text import require_plain
from ftnode.protocol.manifest.sections import (
    FORMAT,
    FORMATS_READ,
    SHADOWS_SHARE,
    Allowed,
    Batch,
    Data,
    Evaluation,
    Liveness,
    Manifest,
    Membership,
    Model,
    Optimiser,
    Pipeline,
    Recovery,
    Run,
    Start,
    Trust,
)
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.settings import SWAP_STAGES_MIN, Settings

ERRORS = "manifest"

__all__ = [
    "Batch", "Data", "Evaluation", "Liveness", "Manifest", "Membership", "Model", "Optimiser", "Pipeline", "Recovery",
    "Run", "Start", "Trust", "parse", "render", "settings",
]  # fmt: skip

CONFIGURATION = 78
BOUNDARY_BYTES_MAX = 1 << 30
PATHS_MAX = 12_000
"""Microbatches times visits: a Status or a Begin names a peer for each, 63 bytes, in a header of 1 MiB."""
"""A boundary tensor's length travels in 4 bytes; beyond 1 GiB a microbatch is better cut."""

SIGNATURE: Final = "signature"
"""The section that protocol/manifest/signature.py reads: it is about the values, and none of them."""
CHECK_TOLERANCE: Final = {"exact": 0.05, "int8": 0.1, "int4": 0.5}
"""By how numbers of sums travel: rounding puts what arrives so far from what was meant, and devices differ a little."""
TENSOR_TOLERANCE: Final = {"float64": 0.05, "float32": 0.05, "bfloat16": 0.05, "int8": 0.07, "int4": 0.15}
"""By how boundary tensors travel: where devices differ a little, a number is rounded up here and down there."""
_SECTIONS: Final[dict[str, type]] = typing.get_type_hints(Manifest)
_KINDS: Final[dict[type, str]] = {int: "a whole number", float: "a number", str: "text"}


def parse(text: str, source: str = "manifest") -> Manifest:
    """The manifest that `text` spells out. Every key is required, so that no default can differ between versions; in
    an earlier format, every key that it had.

    Raises UserError (78) that names `source`, the line, and what is allowed.
    """
    return _Reader(text, source).manifest()


def settings(manifest: Manifest) -> Settings:
    """The numbers that the core decides with."""
    return Settings(
        run=manifest.run_id,
        stages=manifest.pipeline.stages,
        steps=manifest.run.steps,
        microbatches=manifest.batch.microbatches,
        window=manifest.pipeline.window,
        replicas=manifest.pipeline.replicas,
        live_activations=manifest.pipeline.live_activations,
        evaluate_every=manifest.evaluation.every,
        evaluation_microbatches=manifest.evaluation.microbatches,
        ends=manifest.recovery.ends,
        swap=manifest.pipeline.swap,
        swapped=manifest.recovery.swapped,
        weighting=manifest.recovery.weighting,
        norms=manifest.recovery.norms,
        optimiser_state=manifest.recovery.optimiser,
        clip=manifest.optimiser.clip,
        head_every=manifest.head_every,
        shadow_every=manifest.recovery.shadow_every,
        shadow_encoding=manifest.recovery.shadow_encoding,
        rate_factor=manifest.recovery.rate_factor,
        continued=bool(manifest.start.weights),
        omit=manifest.recovery.omit,
        snapshot_every=manifest.recovery.snapshot_every,
        rollback_max=manifest.recovery.rollback_max,
        state_bytes=manifest.state_bytes,
        head_state_bytes=manifest.head_state_bytes,
        block_state_bytes=manifest.stage_state_bytes,
        sum_bytes=manifest.sum_bytes,
        gradient_bytes=manifest.gradient_bytes,
        forward_bytes=manifest.boundary_bytes.forward,
        backward_bytes=manifest.boundary_bytes.backward,
        lease_seconds=manifest.liveness.lease_seconds,
        minority_wait_seconds=manifest.recovery.minority_wait_seconds,
        listed=manifest.membership.join == "listed",
        checks=manifest.trust.checks,
        check_tolerance=CHECK_TOLERANCE[manifest.pipeline.sums],
        tensor_tolerance=max(TENSOR_TOLERANCE[each] for each in manifest.boundary_encodings),
    )


def render(manifest: Manifest, heading: str = "", reasons: Mapping[str, str] | None = None) -> str:
    """Commented TOML: each key under its explanation, and under the reason for its value where `reasons` has one line,
    by section.key. `parse(render(m)) == m`."""
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    lines += ["" if lines else "# A run of ftnode.", "# Version of this format.", f"format = {FORMAT}"]
    for section, kind in _SECTIONS.items():
        lines += ["", f"[{section}]"]
        for entry in fields(kind):
            allowed: Allowed = entry.metadata["allowed"]
            value = getattr(getattr(manifest, section), entry.name)
            reason = (reasons or {}).get(f"{section}.{entry.name}")
            lines += [f"# {allowed.about}", *([f"# Chosen: {reason}."] if reason else [])]
            lines.append(f"{entry.name} = {as_toml(value)}")
    return "\n".join(lines) + "\n"


class _Reader:
    """One text on its way to a manifest. Knows lines, which tomllib forgets."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.lines = text.splitlines()
        try:
            require_plain(text)
            self.tables: dict[str, Any] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also a number of 5000 digits, and brackets in brackets
            raise UserError(f"{source} is not TOML: {error}", CONFIGURATION) from None

    def manifest(self) -> Manifest:
        self._format()
        self._known("", self.tables, ["format", *_SECTIONS, SIGNATURE])
        sections = {name: self._section(name, kind) for name, kind in _SECTIONS.items()}
        manifest = Manifest(**sections)
        self._fits(manifest)
        return manifest

    def _format(self) -> None:
        found = self.tables.get("format")
        if type(found) is not int:
            self._fail("", "format", f"`format = {FORMAT}` is missing: this may not be a manifest")
        if found not in FORMATS_READ:
            read = f"{FORMATS_READ[0]} to {FORMATS_READ[-1]}"
            newer = "; update ftnode" if found > FORMATS_READ[-1] else ""
            self._fail(
                "", "format", f"format {found} is none that this version of ftnode reads, which are {read}{newer}"
            )

    def _section(self, name: str, kind: type) -> Any:
        table = self.tables.get(name)
        if table is None and all(entry.metadata["since"] > self.tables["format"] for entry in fields(kind)):
            return kind()
        if not isinstance(table, dict):
            self._fail("", name, f"section [{name}] is missing")
        self._known(name, table, [entry.name for entry in fields(kind)])
        hints = typing.get_type_hints(kind)
        values = {}
        for entry in fields(kind):
            since = entry.metadata["since"]
            if since > self.tables["format"]:
                if entry.name in table:
                    self._fail(name, entry.name, f"{name}.{entry.name} came with format {since}; set format = {FORMAT}")
                continue
            if entry.name not in table:
                self._fail(name, "", f"{name}.{entry.name} is missing ({entry.metadata['allowed'].about})")
            values[entry.name] = self._value(name, entry.name, hints[entry.name], entry.metadata["allowed"], table)
        return kind(**values)

    def _known(self, section: str, table: dict[str, Any], names: list[str]) -> None:
        for name in table:
            if name not in names:
                near = get_close_matches(name, names, 1, 0.5)
                hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(names)}"
                what = f"key {name} in [{section}]" if section else f"key or section {name}"
                self._fail(section, name, f"unknown {what}{hint}")

    def _value(self, section: str, name: str, kind: Any, allowed: Allowed, table: dict[str, Any]) -> Any:
        found = table[name]
        if kind == tuple[float, float]:
            if isinstance(found, list) and len(found) == 2 and all(_number(item, float, allowed) for item in found):
                return (float(found[0]), float(found[1]))
            wanted = f"a list of two numbers from {in_digits(allowed.low)} to {in_digits(allowed.high)}"
        elif kind is str:
            if isinstance(found, str) and (found in allowed.choices or _matches(allowed.pattern, found)):
                if allowed.since(found) > self.tables["format"]:
                    newer = f"{section}.{name} = {as_toml(found)} came with format {allowed.since(found)}"
                    self._fail(section, name, f"{newer}; set format = {FORMAT}")
                return found
            wanted = " or ".join(filter(None, [*allowed.choices, allowed.pattern_name]))
        elif kind == tuple[str, ...]:
            texts = found if isinstance(found, list) else [None]
            wrong = [text for text in texts if not isinstance(text, str) or not _matches(allowed.pattern, text)]
            if not wrong and len(texts) <= allowed.high:
                return tuple(texts)
            if wrong and isinstance(found, list):
                only = f"it may have {allowed.pattern_name} alone"
                self._fail(section, name, f"{section}.{name} has {_shown(wrong[0])}, and {only}")
            wanted = f"a list of at most {allowed.high} {allowed.pattern_name}"
        elif kind is bool:
            if isinstance(found, bool):
                return found
            wanted = "true or false"
        else:
            if _number(found, kind, allowed):
                return kind(found)
            wanted = f"{_KINDS[kind]} from {in_digits(allowed.low)} to {in_digits(allowed.high)}"
        return self._fail(section, name, f"{section}.{name} must be {wanted}, not {_shown(found)}")

    def _model_fits(self, model: Model, start: Start) -> None:
        """What single keys of these sections cannot say."""
        if not model.head_dim and model.dim % (2 * model.heads):
            self._fail(
                "model", "dim", f"dim {model.dim} must be a multiple of 2 × heads = {2 * model.heads}, "
                "because rotary positions turn pairs of numbers; or set model.head_dim",
            )  # fmt: skip
        if model.subspace >= model.dim:
            self._fail(
                "model", "subspace", f"a subspace of {model.subspace} coordinates leaves none of dim {model.dim} to be "
                "fixed; 0 for no subspace",
            )  # fmt: skip
        if model.head_dim % 2:
            self._fail(
                "model", "head_dim", f"head_dim {model.head_dim} must be even, because rotary positions turn pairs of "
                "numbers",
            )  # fmt: skip
        if model.kv_heads and model.heads % model.kv_heads:
            self._fail("model", "kv_heads", f"{model.heads} heads cannot share {model.kv_heads} heads of keys equally")
        if model.tied and model.subspace:
            self._fail("model", "tied", "a tied embedding is read whole, and a subspace leaves most of it fixed")
        ordered = model.rope_original and 0 < model.rope_low < model.rope_high
        if model.rope_scaling in ("llama3", "yarn") and not (ordered and model.rope_theta > 1):
            self._fail(
                "model", "rope_scaling", f"{model.rope_scaling} needs a rope_theta above 1, rope_original, and a "
                "rope_low above 0 and below rope_high",
            )  # fmt: skip
        if start.weights and model.subspace:
            self._fail("start", "weights", "a model that exists writes to its whole residual stream; set subspace = 0")
        if model.train != "all" and not start.weights:
            self._fail("model", "train", 'random first weights are all trained; set model.train = "all"')
        if model.lora and not start.weights:
            self._fail("model", "lora", "adapters need a model to go on from; set model.lora = 0")
        if model.lora and model.train != "all":
            self._fail("model", "train", 'adapters are trained in place of weights; set model.train = "all"')
        if bool(model.lora) != bool(model.lora_alpha):
            wanted = "above 0 with adapters, and 0 without"
            self._fail("model", "lora_alpha", f"lora_alpha is {wanted}, not {model.lora_alpha}")
        if model.last_layers > model.layers:
            self._fail("model", "train", f"the model has {model.layers} layers")
        if start.weights and model.qkv_bias != (start.architecture == "Qwen2ForCausalLM"):
            self._fail("start", "architecture", "only Qwen2ForCausalLM has biases of queries, keys and values")

    def _fits(self, manifest: Manifest) -> None:
        """What single keys cannot say."""
        self._model_fits(manifest.model, manifest.start)
        model, stages = manifest.model, manifest.pipeline.stages
        if stages > model.layers:
            self._fail(
                "pipeline",
                "stages",
                f"{stages} stages are more than {model.layers} layers; at most one stage per layer",
            )
        if model.layers % stages:
            fitting = [str(n) for n in range(1, model.layers + 1) if model.layers % n == 0]
            self._fail(
                "pipeline", "stages", f"{model.layers} layers cannot be divided equally among {stages} stages; "
                f"pipeline.stages may be {', '.join(fitting)}",
            )  # fmt: skip
        if wrong := _blocks_objection(manifest.pipeline.boundary, model):
            self._fail("pipeline", "boundary", wrong)
        if wrong := _blocks_objection(manifest.pipeline.boundary_gradients, model):
            self._fail("pipeline", "boundary_gradients", wrong)
        if manifest.pipeline.swap and stages < SWAP_STAGES_MIN:
            self._fail("pipeline", "swap", f"swapped routes need {SWAP_STAGES_MIN} stages, not {stages}")
        if manifest.membership.join != "open" and not manifest.membership.peers:
            self._fail("membership", "peers", "nobody is listed; add the PeerIds of volunteers (ftnode id), or set "
                       'membership.join = "open"')  # fmt: skip
        every = manifest.recovery.shadow_every
        if 0 < every < manifest.shadow_every_min:
            self._fail(
                "recovery", "shadow_every", f"shadows every {every} steps take more than {SHADOWS_SHARE:.0%} of "
                f"the bytes of these steps; at least {manifest.shadow_every_min}, or 0 for none",
            )  # fmt: skip
        if 0 < manifest.recovery.rollback_max < manifest.recovery.snapshot_every:
            self._fail(
                "recovery", "rollback_max", f"snapshots every {manifest.recovery.snapshot_every} steps are too far "
                f"apart to lose at most {manifest.recovery.rollback_max}; at least as many, or 0 for any number",
            )  # fmt: skip
        if manifest.pipeline.swap and manifest.batch.microbatches < 2:
            self._fail(
                "batch", "microbatches", "swapped routes need 2 microbatches: every other one takes them, so with 1 no "
                "stage learns to take another's place",
            )  # fmt: skip
        if manifest.batch.microbatches * (stages + 2) > PATHS_MAX:
            self._fail(
                "batch", "microbatches", f"{manifest.batch.microbatches} microbatches through {stages} stages are more "
                f"paths than a message holds; at most {PATHS_MAX // (stages + 2)}",
            )  # fmt: skip
        if manifest.boundary_bytes.largest > BOUNDARY_BYTES_MAX:
            self._fail(
                "batch", "sequences", f"a microbatch of {manifest.boundary_bytes.largest} bytes is more than "
                f"{BOUNDARY_BYTES_MAX}; lower batch.sequences or model.context",
            )  # fmt: skip

    def _fail(self, section: str, name: str, message: str) -> NoReturn:
        raise UserError(f"{self.source}, line {self._line(section, name)}: {message}", CONFIGURATION)

    def _line(self, section: str, name: str) -> int:
        """Where a key stands, 1-based; its section's line when it is not written on one of its own; else 1."""
        current, section_line = "", 1
        for number, line in enumerate(self.lines, 1):
            header = re.match(r"\s*\[\s*([\w\"'.-]+)\s*\]", line)
            if header:
                current = header[1].strip("\"'")
                if current in (section, name):
                    section_line = number
                if not section and current == name:
                    return number
                continue
            found = re.match(r"\s*([\w\"'.-]+)\s*=", line)
            if found:
                full = ".".join(filter(None, (current, found[1].strip("\"'"))))
                if name and full == ".".join(filter(None, (section, name))):
                    return number
                if section and full == section:
                    section_line = number
        return section_line


def _blocks_objection(encoding: str, model: Model) -> str:
    """Why rows that travel in this model are not worth this encoding, or nothing."""
    if encoding not in BLOCK_BITS or (block := block_numbers(model.stream)) >= BLOCK_MIN:
        return ""
    return (
        f"{encoding} has a scale for each block, and blocks of a row of {model.stream} numbers would be of {block}; "
        f"model.{'subspace' if model.subspace else 'dim'} must be a multiple of {BLOCK_MIN}"
    )  # fmt: skip


def _number(found: object, kind: type, allowed: Allowed) -> bool:
    whole = type(found) is int
    real = type(found) is float and kind is float and isfinite(found)
    return (whole or real) and allowed.low <= typing.cast(float, found) <= allowed.high


def _matches(pattern: str, found: str) -> bool:
    return bool(pattern) and re.fullmatch(pattern, found) is not None


def in_digits(number: float) -> str:
    """All of them, where Python would write 1e+09."""
    return f"{Decimal(repr(number)):f}".removesuffix(".0")


def _shown(found: object) -> str:
    text = as_toml(found) if isinstance(found, str | int | float) else type(found).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def read_format(text: str) -> int:
    """Of a manifest that is one."""
    return int(tomllib.loads(text)["format"])


def as_toml(value: Any) -> str:
    """A value of a manifest as its file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(as_toml(item) for item in value)}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
