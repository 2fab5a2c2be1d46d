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


def test_where_nothing_is_known_all_are_dialled() -> None:
    assert choose_way("me", (DIRECT, A, B), {}, ()) == (DIRECT, A, B)
    assert len(choose_way("me", (A, B, C), {}, set(IDS))) == 1
    assert choose_way("me", (DIRECT,), {}, set(IDS)) == (DIRECT,)


def test_many_peers_do_not_all_take_the_first_of_relays_that_are_alike() -> None:
    chosen = Counter(choose_way(f"peer {number}", (A, B, C), {}, set(IDS)) for number in range(300))
    assert len(chosen) == 3 and max(chosen.values()) < 150
