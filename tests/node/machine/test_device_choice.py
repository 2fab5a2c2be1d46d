"""The owner's words for devices, and the card that is taken without any."""

from __future__ import annotations

from random import Random

import pytest

from ftnode.node.machine.device_choice import GIGABYTE, Card, choose, devices_of
from ftnode.protocol.words.errors import UserError

GB = int(GIGABYTE)


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ("auto", ("auto",)),
        ("cpu", ("cpu",)),
        ("cuda", ("cuda",)),
        ("cuda:7", ("cuda:7",)),
        ("cuda:0,cuda:1", ("cuda:0", "cuda:1")),
        ("cuda,cuda:1", ("cuda:0", "cuda:1")),
        ("cpu,cpu", ("cpu", "cpu")),
    ],
)
def test_what_can_be_named(words: str, devices: tuple[str, ...]) -> None:
    assert devices_of(words) == devices


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("tpu", "is unknown; use auto, cpu, cuda or cuda:N, or several cards as cuda:0,cuda:1"),
        ("", "is unknown"),
        ("cuda:", "is unknown"),
        ("cuda:123", "is unknown"),
        ("cuda:0,", "is unknown"),
        ("cuda:0, cuda:1", "is unknown"),
        ("auto,cuda:0", "is unknown"),
        ("cuda:0,cuda:0", "names a card twice"),
        ("cuda,cuda:00", "names a card twice"),
        ("cpu,cuda:0", "mixes the processor with cards"),
        (",".join(["cpu"] * 17), "names 17 devices; name 16 at most"),
    ],
)
def test_what_cannot(words: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        devices_of(words)


OLD = Card("cuda:0", "GTX 1080", 8 * GB, 20)
NEW = Card("cuda:1", "RTX 3090", 23_100_000_000, 82)
TWIN = Card("cuda:2", "RTX 4090", 23_900_000_000, 128)
GAME = Card("cuda:0", "RTX 3060", 9 * GB, 28, ("python",))
FULL = Card("cuda:3", "RTX 3090", GB // 2, 82)


@pytest.mark.parametrize(
    ("cards", "options", "device", "says"),
    [
        ((GAME, NEW), {}, "cuda:1", "computes on cuda:1 (RTX 3090, 23.1 GB free); cuda:0 is used by python"),
        ((OLD, NEW), {}, "cuda:1",
         "computes on cuda:1 (RTX 3090, 23.1 GB free); cuda:0 is free, too: --device cuda:0,cuda:1 takes all"),
        ((NEW, TWIN), {}, "cuda:2", "computes on cuda:2 (RTX 4090, 23.9 GB free); cuda:1 is free, too: "
         "--device cuda:1,cuda:2 takes all"),
        ((GAME,), {}, "cpu", "computes on the CPU: cuda:0 is used by python"),
        ((GAME,), {"shared": True}, "cuda:0", "computes on cuda:0 (RTX 3060, 9.0 GB free)"),
        ((GAME, FULL), {}, "cpu",
         "computes on the CPU: cuda:0 is used by python; cuda:3 has 0.5 GB free, and a stage takes 2.0"),
        ((FULL, OLD), {}, "cuda:0",
         "computes on cuda:0 (GTX 1080, 8.0 GB free); cuda:3 has 0.5 GB free, and a stage takes 2.0"),
        ((OLD,), {"blind": "nvidia-ml-py is not installed"}, "cuda:0", "computes on cuda:0 (GTX 1080, 8.0 GB free); "
         "nobody can say who else uses it: nvidia-ml-py is not installed"),
    ],
)  # fmt: skip
def test_the_card_with_most_room_and_why(
    cards: tuple[Card, ...], options: dict[str, object], device: str, says: str
) -> None:
    assert choose(cards, 2 * GB, **options) == (device, says)  # type: ignore[arg-type]


def test_of_cards_with_as_much_room_the_faster_and_of_twins_the_first() -> None:
    slow, fast = Card("cuda:0", "A", 9 * GB + 500, 20), Card("cuda:1", "B", 9 * GB, 40)
    assert choose((slow, fast), 0)[0] == "cuda:1"
    assert choose((Card("cuda:0", "A", GB, 9), Card("cuda:1", "A", GB, 9)), 0)[0] == "cuda:0"


@pytest.mark.parametrize("seed", range(100))
def test_a_card_that_is_taken_is_free_and_no_other_has_a_gigabyte_more(seed: int) -> None:
    chance = Random(seed)
    made = [
        Card(f"cuda:{n}", "card", chance.randrange(80 * GB), chance.randrange(200), chance.choice([(), ("game",)]))
        for n in range(chance.randint(1, 8))
    ]
    needed, shared = chance.randrange(60 * GB), chance.random() < 0.5
    device, why = choose(made, needed, shared)
    fit = [card for card in made if card.memory_free >= needed and (shared or not card.programs)]
    assert device in why.lower() and "\n" not in why
    if not fit:
        assert device == "cpu"
        return
    (chosen,) = (card for card in fit if card.device == device)
    assert all(card.memory_free - chosen.memory_free < GB for card in fit)
