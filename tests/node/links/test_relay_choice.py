"""Which relays are chosen, and that those who choose by themselves spread."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ftnode.node.links.relay_choice import (
    PLACE_SECONDS,
    RATE_STEP,
    Offer,
    choose_places,
    choose_way,
    relay_in,
    relays_in,
    worth_moving,
)

IDS = [
    "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf",
    "12D3KooWNYfYW2B8HBPp7iis6qZP7BnRSD1BTF99BLCVQHkD56P7",
    "12D3KooWKNGaBs2rfK5QaBYrthF2iPWSDhsN6udJVqvMcwqotD1J",
]
DIRECT = "/ip4/198.51.100.1/tcp/4101"
A, B, C = (f"/ip4/192.0.2.{number}/tcp/4101/p2p/{relay}/p2p-circuit" for number, relay in enumerate(IDS))


def test_the_relay_of_an_address() -> None:
    assert (relay_in(A), relay_in(DIRECT), relay_in("nonsense")) == (IDS[0], "", "")
    assert relays_in((A, B, DIRECT)) == set(IDS[:2])


def test_near_relays_and_idle_ones_come_first() -> None:
    offers = {"near": Offer(0.01, 0, 0), "far": Offer(0.2, 0, 0), "busy": Offer(0.01, 20, 0)}
    assert choose_places("me", offers, (), (), 2) == ("near", "far")
    assert choose_places("me", offers, (), (), 9) == ("near", "far", "busy")


def test_a_place_is_kept_until_another_relay_is_clearly_better() -> None:
    offers = {"one": Offer(0.05, 1, 0), "other": Offer(0.05, 0, 0)}
    assert choose_places("me", offers, (), {"one"}, 1) == ("one",)
    assert choose_places("me", offers | {"one": Offer(0.05, 5, 0)}, (), {"one"}, 1) == ("other",)


def test_those_that_a_person_named_come_last_and_are_tried_all_the_same() -> None:
    assert choose_places("me", {}, ("point", "other"), (), 1) == ("point",)
    assert choose_places("me", {"v": Offer(1.0, 9, 0)}, ("point",), (), 3) == ("v", "point")
    assert choose_places("me", {"point": Offer(0.1, 0, 0)}, ("point",), (), 3) == ("point",)


@pytest.mark.parametrize("seed", range(50))
def test_those_who_choose_by_themselves_spread(seed: int) -> None:
    """Members look at moments of their own, at loads that are up to two looks old; after some rounds no relay has twice
    its share, whatever the order."""
    chance = Random(seed)
    relays, members = chance.randrange(3, 12), chance.randrange(20, 60)
    latency = {(m, r): chance.uniform(0.02, 0.06) for m in range(members) for r in range(relays)}
    held: dict[int, tuple[str, ...]] = dict.fromkeys(range(members), ())
    seen = [Counter[str]() for _ in range(3)]
    for _ in range(8):
        for member in chance.sample(range(members), members):
            told = chance.choice(seen[-3:]) - Counter(held[member])
            offers = {str(relay): Offer(latency[member, relay], told[str(relay)], 0) for relay in range(relays)}
            held[member] = choose_places(str(member), offers, (), held[member], 3)
            seen.append(Counter(relay for places in held.values() for relay in places))
    share = 3 * members / relays
    assert max(seen[-1].values()) <= share + 0.04 / PLACE_SECONDS + max(2, share / 2), (share, seen[-1])


def test_a_peer_is_dialled_through_its_least_loaded_relay() -> None:
    offers = {IDS[0]: Offer(0.01, 0, 5 * RATE_STEP), IDS[1]: Offer(0.09, 0, RATE_STEP)}
    assert choose_way("me", (DIRECT, A, B), offers, set(IDS)) == (DIRECT, B)
    offers[IDS[1]] = Offer(0.09, 0, 5.5 * RATE_STEP)
    assert choose_way("me", (DIRECT, A, B), offers, set(IDS)) == (DIRECT, A), "alike but for the latency"
    assert choose_way("me", (DIRECT, A, B), offers, {IDS[1]}) == (DIRECT, B), "the other one is gone"


def test_a_circuit_moves_to_a_relay_that_does_clearly_less() -> None:
    own = 1e6

    def verdict(here: float, there: float, third: float = 9e9) -> str:
        offers = {
            IDS[0]: Offer(0.1, 0, here, {"peer": own}),
            IDS[1]: Offer(0.1, 0, there),
            IDS[2]: Offer(0.1, 0, third),
        }
        return worth_moving("peer", IDS[0], (DIRECT, A, B, C), offers)

    assert verdict(3e6, 1e6) == IDS[1]
    assert verdict(3e6, 1e6, third=0.5e6) == IDS[2]
    assert verdict(2e6, 1e6) == "", "the two would but change places"
    assert verdict(1e6, 0.0) == "", "it is alone there"
    assert worth_moving("peer", IDS[0], (A, B), {IDS[1]: Offer(0.1, 0, 0.0)}) == "", "nothing is known of its relay"
    assert worth_moving("other", IDS[0], (A, B), {IDS[0]: Offer(0.1, 0, 3e6), IDS[1]: Offer(0.1, 0, 0)}) == "", "idle"


@pytest.mark.parametrize("seed", range(50))
def test_circuits_spread_over_relays_and_then_stay(seed: int) -> None:
    """Each moves by what it knows, one at a time; no relay is left with 1.5 times what the best division gives it."""
    chance = Random(seed)
    relays, pairs = IDS[: chance.randrange(2, 4)], [f"pair {number}" for number in range(chance.randrange(4, 30))]
    through = {pair: chance.choice(relays[: chance.randrange(1, 3)]) for pair in pairs}
    moves = 0

    def offers(pair: str) -> dict[str, Offer]:
        loads = Counter(through.values())
        return {one: Offer(0.1, 0, 1e6 * loads[one], {pair: 1e6 * (through[pair] == one)}) for one in relays}

    for _ in range(20):
        moves = 0
        for pair in chance.sample(pairs, len(pairs)):
            better = worth_moving(pair, through[pair], (A, B, C)[: len(relays)], offers(pair))
            if better:
                through[pair] = better
                moves += 1
    assert moves == 0
    assert max(Counter(through.values()).values()) <= 1 + 1.25 * len(pairs) / len(relays)


def test_where_nothing_is_known_all_are_dialled() -> None:
    assert choose_way("me", (DIRECT, A, B), {}, ()) == (DIRECT, A, B)
    assert len(choose_way("me", (A, B, C), {}, set(IDS))) == 1
    assert choose_way("me", (DIRECT,), {}, set(IDS)) == (DIRECT,)


def test_many_peers_do_not_all_take_the_first_of_relays_that_are_alike() -> None:
    chosen = Counter(choose_way(f"peer {number}", (A, B, C), {}, set(IDS)) for number in range(300))
    assert len(chosen) == 3 and max(chosen.values()) < 150
