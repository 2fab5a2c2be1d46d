"""Limits as people write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.node.manifests.presets import preset
from ftnode.node.owner.limits import (
    BOUNDARY_SECONDS,
    Limits,
    Memory,
    check_limits,
    limits_text,
    parse_memory,
    parse_rate,
)
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("20Mbit", 2.5e6), ("20mbit/s", 2.5e6), ("800 kbit", 1e5), ("1.5Gbit", 1.875e8), ("20Mbps", 2.5e6),
        ("2.5MB/s", 2.5e6), ("64kB/s", 64e3), ("64KiB/s", 65536.0), ("1GB/s", 1e9), ("none", 0.0), (" NONE ", 0.0),
    ],
)  # fmt: skip
def test_a_rate_is_bytes_per_second(text: str, bytes_per_second: float) -> None:
    assert parse_rate(text) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize(
    "text", ["", "20", "20M", "20Mb", "20MB", "-1Mbit", "1e9", "20 Mbit up", "1kbit", "0Mbit", "nanMbit"]
)
def test_a_rate_that_could_mean_two_things_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="give at least 64kbit" if text in ("1kbit", "0Mbit") else "20Mbit or 800kbit"):
        parse_rate(text)


def test_a_rate_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="more than any line carries"):
        parse_rate("9" * 400 + "Mbit")


@pytest.mark.parametrize(
    ("text", "of_16_gib"),
    [
        ("0.5", 8 << 30), ("50%", 8 << 30), ("1", 16 << 30), ("12GiB", 12 << 30), ("800MB", 800_000_000),
        ("99TiB", 16 << 30), ("none", 0),
    ],
)  # fmt: skip
def test_memory_is_a_share_or_an_amount(text: str, of_16_gib: int) -> None:
    assert parse_memory(text).bytes_of(16 << 30) == of_16_gib


@pytest.mark.parametrize(
    "text", ["", "0", "1.5", "12", "120%", "12G", "-1GiB", "0GiB", "0.5B", "half", "9" * 400 + "B"]
)
def test_memory_that_is_neither_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"0.7 or 70%, nor an amount, as 12GiB"):
        parse_memory(text)


def test_limits_are_said_in_one_line() -> None:
    said = limits_text(Limits(Memory(share=0.7), up=2.5e6, down=1.25e5))
    assert said == "memory 70%, up 20 Mbit/s, down 1 Mbit/s"
    assert limits_text(Limits(Memory(amount=3 << 29))) == "memory 1.5 GiB"
    assert limits_text(Limits(Memory(amount=1000))) == "memory 1.0 kB" and not limits_text(Limits())


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--up", "20", "write bits as 20Mbit"),
        ("--down", "1bit", "give at least 64kbit"),
        ("--vram", "12", "as 12GiB"),
        ("--vram", "9" * 400 + "GiB", "as 12GiB"),
        ("--data-limit", "inf", "inf is not in the range"),
        ("--data-limit", "1e308", "is not in the range"),
        ("--snapshot-limit", "nan", "nan is no finite number"),
        ("--max-temp", "nan", "nan is no finite number"),
        ("--hand-over", "nan", "nan is no finite number"),
        ("--timeout", "inf", "inf is no finite number"),
        ("--nice", "30", "30 is not in the range"),
        ("--threads", "0", "0 is not in the range"),
    ],
)
def test_a_wrong_limit_is_one_line(
    ftnode: Callable[..., Seen], manifest_file: Path, option: str, value: str, told: str
) -> None:
    seen = ftnode("join", manifest_file, option, value)
    assert seen.code == 64 and told in seen.err and option in seen.err and seen.err.count("\n") == 1


def test_a_limit_below_what_the_run_needs_says_how_much_that_is() -> None:
    manifest = preset("large")
    check_limits(Limits(up=rate_needed(manifest), down=0.0), manifest)
    with pytest.raises(UserError, match=r"--down 1 Mbit/s is too little for this run, .* give at least \d.*bit/s"):
        check_limits(Limits(down=125_000.0), manifest)


def rate_needed(manifest: Manifest) -> float:
    return manifest.boundary_bytes.largest / BOUNDARY_SECONDS
