"""`ftnode lab data`: the speed of `ftnode data build` against the tokenizer library alone, and its peak memory.

Both get the same documents and the same tokenizer, a byte-level BPE that is trained on the spot; they take turns, so
that a busy machine slows both, and a ratio is the median of the rounds' ratios. The library has everything in memory,
and its `encode_batch` gets as many documents at a time as fit into what a build gives it. A build is the command, as a
process: it starts, reads, checks, encodes, hashes and writes.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ftnode.models.data import load_corpus
from ftnode.node.data.build import BATCH_BYTES
from ftnode.protocol.words.errors import UserError

RATIO_MIN: Final = 0.8
PEAK_MIB_MAX: Final = 1024
VOCABULARY: Final = 16384
TRAINED_ON: Final = 4_000_000
"""Characters."""
DOCUMENT_CHARACTERS: Final = 20_000
GROWTH: Final = 4
"""The larger corpora of the memory's measurement have so many times as much text."""
BYTE_MEGABYTES: Final = (200, 1500)
"""Corpora for the byte tokenizer, which makes a token of every byte, a hundred times as fast."""


def run(json_output: bool = False, rounds: int = 3, megabytes: int = 8) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures; `passed` says whether the budgets hold."""
    with tempfile.TemporaryDirectory(prefix="ftnode-lab-") as temporary:
        result = measure(Path(temporary), rounds, megabytes)
    if json_output:
        print(json.dumps(result, indent=2))
    else:
        Console().print(table(result))
    return result


def measure(folder: Path, rounds: int, megabytes: int) -> dict[str, Any]:
    texts = documents()
    tokenizer = folder / "tokenizer.json"
    train(texts).save(str(tokenizer))
    small, large = folder / "small.jsonl", folder / "large.jsonl"
    write(texts, small, megabytes)
    with small.open(encoding="utf-8") as file:
        chosen = [str(json.loads(line)["text"]) for line in file]
    write(texts, large, GROWTH * megabytes)
    library, builds = [], []
    for number in range(rounds):
        library.append(encode(tokenizer, chosen))
        builds.append(build(small, str(tokenizer), folder / f"small-{number}"))
    grown = [build(large, str(tokenizer), folder / "large")]
    for size in BYTE_MEGABYTES:
        path = folder / f"bytes-{size}.jsonl"
        write(texts, path, size)
        grown.append(build(path, "bytes", folder / f"bytes-{size}"))
        path.unlink()
    size = sum(len(text.encode()) for text in chosen)
    ratio = median(alone[0] / built["seconds"] for alone, built in zip(library, builds))
    peak = max(built["peak_mib"] for built in [*builds, *grown])
    return {
        "megabytes": size / 1e6, "rounds": rounds, "tokens": builds[0]["tokens"],
        "library_megabytes_per_second": size / 1e6 / median(seconds for seconds, _ in library),
        "build_megabytes_per_second": size / 1e6 / median(built["seconds"] for built in builds),
        "cpu_ratio": median(alone[1] / built["cpu_seconds"] for alone, built in zip(library, builds)),
        "ratio": ratio, "ratio_min": RATIO_MIN, "builds": [builds[0], *grown], "peak_mib": peak,
        "peak_mib_max": PEAK_MIB_MAX, "passed": ratio >= RATIO_MIN and peak <= PEAK_MIB_MAX,
    }  # fmt: skip


def documents() -> list[str]:
    """The standard library's sources, in pieces that differ in length."""
    text = bytes(load_corpus("").training).decode(errors="replace").replace("\0", "")  # type: ignore[call-overload]
    found: list[str] = []
    start = 0
    while start < len(text):
        size = DOCUMENT_CHARACTERS // (1 + len(found) % 7)
        found.append(text[start : start + size])
        start += size
    return found


def train(texts: list[str]) -> Tokenizer:
    return byte_level_bpe(texts[: TRAINED_ON * 7 // DOCUMENT_CHARACTERS // 3], VOCABULARY)


def byte_level_bpe(texts: list[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of at most so many tokens, which ends documents with <|endoftext|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write(texts: list[str], path: Path, megabytes: int) -> None:
    """So much text as JSON lines: the same over and over, each time with another number in front."""
    size, number = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while size < megabytes * 1_000_000:
            text = f"{number}\n{texts[number % len(texts)]}"
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            size += len(text.encode())
            number += 1


def encode(tokenizer: Path, texts: list[str]) -> tuple[float, float]:
    """Seconds that the library takes for them, and those of all cores."""
    library = Tokenizer.from_file(str(tokenizer))
    started, used, batch, size = time.perf_counter(), time.process_time(), [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_BYTES:
            library.encode_batch(batch, add_special_tokens=False)
            batch, size = [], 0
    library.encode_batch(batch, add_special_tokens=False)
    return time.perf_counter() - started, time.process_time() - used


def build(source: Path, tokenizer: str, out: Path) -> dict[str, Any]:
    """Run the command. Raises UserError when it fails."""
    argv = [sys.executable, "-m", "ftnode.lab.parts.data", str(source), tokenizer, str(out)]
    started, used = time.perf_counter(), _children_seconds()
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    seconds, cpu_seconds = time.perf_counter() - started, _children_seconds() - used
    if done.returncode:
        raise UserError(f"ftnode data build ended with {done.returncode}", 70)
    facts, _, peak = done.stdout.rpartition("\n")
    return {
        "tokenizer": "bytes" if tokenizer == "bytes" else "BPE", "megabytes": source.stat().st_size / 1e6,
        "seconds": seconds, "cpu_seconds": cpu_seconds, "tokens": sum(json.loads(facts)["tokens"].values()),
        "peak_mib": int(peak) / 1024,
    }  # fmt: skip


def table(result: dict[str, Any]) -> Table:
    shown = Table(
        title=f"ftnode data build; {result['ratio']:.2f} × the library's encode_batch (at least {RATIO_MIN}; "
        f"{result['cpu_ratio']:.2f} × by processor time), peak {result['peak_mib']:.0f} MiB (at most {PEAK_MIB_MAX})"
    )
    for column in ("tokenizer", "text, MB", "tokens", "s", "MB/s", "peak, MiB"):
        shown.add_column(column, justify="left" if column == "tokenizer" else "right")
    for built in result["builds"]:
        speed = built["megabytes"] / built["seconds"]
        shown.add_row(
            built["tokenizer"], f"{built['megabytes']:.0f}", f"{built['tokens']:,}", f"{built['seconds']:.1f}",
            f"{speed:.1f}", f"{built['peak_mib']:.0f}",
        )  # fmt: skip
    alone = result["library_megabytes_per_second"]
    shown.add_row("BPE, library alone", f"{result['megabytes']:.0f}", "", "", f"{alone:.1f}", "")
    return shown


def _children_seconds() -> float:
    """Of all cores, by processes that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _measured(source: str, tokenizer: str, out: str) -> int:
    """The command in this process, and its peak resident memory in KiB behind what it prints."""
    from ftnode.node.cli.main import main

    code = main(["data", "build", source, "--tokenizer", tokenizer, "--out", out, "--json"])
    print(_peak_kibibytes(), end="")
    return code


def _peak_kibibytes() -> int:
    """Of resident memory. Not getrusage's, which begins with that of whoever started us."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    sys.exit(_measured(*sys.argv[1:]))
