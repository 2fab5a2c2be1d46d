"""Which precision goes with which device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ftnode.models.device_precision import precision_of


class Cards:
    """A torch.cuda that has one card for each capability. `bfloat16`: what a ROCm build says."""

    def __init__(self, *capabilities: tuple[int, int], bfloat16: bool = True) -> None:
        self._capabilities, self._bfloat16 = capabilities, bfloat16

    def get_device_capability(self, device: Any) -> tuple[int, int]:
        return self._capabilities[torch.device(device).index or 0]

    def is_bf16_supported(self, including_emulation: bool) -> bool:
        assert not including_emulation
        return self._bfloat16


@pytest.mark.parametrize(
    ("capability", "precision"),
    [
        ((12, 0), "bfloat16"),
        ((9, 0), "bfloat16"),
        ((8, 9), "bfloat16"),
        ((8, 0), "bfloat16"),
        ((7, 5), "float16"),
        ((7, 0), "float16"),
        ((6, 1), "float32"),
        ((5, 2), "float32"),
    ],
)
def test_of_a_card_by_its_generation(capability: tuple[int, int], precision: str) -> None:
    assert precision_of("cuda", Cards(capability), rocm=False) == precision


def test_each_card_of_a_machine_has_its_own() -> None:
    cards = Cards((7, 5), (8, 6))
    assert precision_of("cuda:0", cards, rocm=False) == "float16"
    assert precision_of(torch.device("cuda", 1), cards, rocm=False) == "bfloat16"


@pytest.mark.parametrize(("bfloat16", "precision"), [(True, "bfloat16"), (False, "float16")])
def test_a_card_of_amd_is_asked_whether_it_has_it(bfloat16: bool, precision: str) -> None:
    """Its numbers of generations are not NVIDIA's: gfx803 and gfx906 say (8, 0) and (9, 0)."""
    assert precision_of("cuda:0", Cards((9, 0), bfloat16=bfloat16), rocm=True) == precision


def test_the_processor_keeps_float32_and_asks_nobody() -> None:
    assert precision_of("cpu") == "float32"
    assert precision_of(torch.device("cpu")) == "float32"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_that_is_not_there_is_an_error_of_torch() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        precision_of("cuda:0")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_of_it_are_multiplied_on_this_card() -> None:
    dtype = getattr(torch, precision_of("cuda"))
    one = torch.ones(16, 16, device="cuda", dtype=dtype)
    assert (one @ one).eq(16).all()
