"""What a person is told of dials in vain."""

from __future__ import annotations

import pytest

from ftnode.node.links.dial_failures import PEERS_MAX, DialFailures, found_instead, is_another

HEAD = "failed to dial: failed to dial 12D3KooWA: all dials failed\n  * [/ip4/192.0.2.7/tcp/1] "
ANOTHER = (
    "failed to negotiate security protocol: peer id mismatch: expected 12D3KooWA, but remote key matches 12D3KooWB"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + ANOTHER, "something answers there, but it is not this peer: it is 12D3KooWB"),
        (HEAD + "dial tcp4 192.0.2.7:1: connect: connection refused", "connection refused"),
        (HEAD + "dial tcp4 0.0.0.0:2->192.0.2.7:1: i/o timeout", "no answer"),
        (f"{HEAD}dial tcp4: connect: connection refused\n  * [/ip6/::1/tcp/1] dial: connect: no route to host",
         "connection refused; no route to host"),
        (f"{HEAD}x: connection refused\n  * [/ip6/::1/tcp/1] y: connection refused", "connection refused"),
        (f"{HEAD}dial backoff\n  * [/ip6/::1/tcp/1] y: connection refused", "connection refused"),
        ("context deadline exceeded", "no answer"),
        ("no answer within 5 s", "no answer within 5 s"),
        (HEAD + "dial backoff", "it did not answer a moment ago"),
    ],
)  # fmt: skip
def test_words(text: str, words: str) -> None:
    assert DialFailures().words("12D3KooWA", text) == words


def test_who_is_not_tried_again_has_the_cause_of_the_last_try() -> None:
    failures = DialFailures()
    told = failures.words("12D3KooWA", HEAD + ANOTHER)
    assert failures.words("12D3KooWA", HEAD + "dial backoff") == told
    assert failures.words("12D3KooWC", HEAD + "dial backoff") != told, "of somebody else nothing is known"
    for number in range(PEERS_MAX):
        failures.words(str(number), "connection refused")
    assert failures.words("12D3KooWA", HEAD + "dial backoff") == "it did not answer a moment ago"


def test_another_peer_is_told_from_one_that_is_away() -> None:
    assert is_another(HEAD + ANOTHER) and not is_another(HEAD + "dial backoff")


def test_who_answers_instead_is_known_where_all_addresses_were_tried_and_lead_there() -> None:
    second = "\n  * [/ip4/192.0.2.8/tcp/1] "
    assert found_instead(HEAD + ANOTHER) == found_instead(HEAD + ANOTHER + second + ANOTHER) == "12D3KooWB"
    for other in ("dial backoff", "connect: connection refused", "i/o timeout"):
        assert found_instead(HEAD + ANOTHER + second + other) == found_instead(HEAD + other + second + ANOTHER) == ""
        assert found_instead(other) == ""
