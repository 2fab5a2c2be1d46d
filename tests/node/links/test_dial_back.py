"""Whether a peer can be dialled, in virtual time: whoever is not reached learns nothing from how long that took."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from ftnode.node.links import dial_back
from ftnode.node.links.dial_back import KNOCK_SECONDS, knock
from ftnode.node.links.dial_gate import DialGate

ASKER = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
END = "/ip4/8.8.8.8/tcp/50000"
THERE, ELSEWHERE = "/ip4/8.8.8.8/tcp/31337", "/ip4/9.9.9.9/tcp/31337"


async def refuses() -> bool:
    return False


async def hangs() -> bool:
    await trio.sleep_forever()


async def answers_late() -> bool:
    with trio.move_on_after(0.5):
        await trio.sleep_forever()
    return True


def knocked(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Awaitable[bool]], addresses: tuple[str, ...]
) -> tuple[str, float, int]:
    """What is answered, after how many seconds, and how often somebody was dialled."""
    dialled = []

    async def listens(_peer: str, host: str, port: int) -> bool:
        dialled.append((host, port))
        return await answer()

    async def main() -> tuple[str, float]:
        return await knock(DialGate(trio.current_time), ASKER, addresses, [END]), trio.current_time() - began

    monkeypatch.setattr(dial_back, "listens", listens)
    clock = trio.testing.MockClock(autojump_threshold=0)
    began = clock.current_time()
    return *trio.run(main, clock=clock), len(dialled)


@pytest.mark.parametrize("answer", [refuses, hangs])
@pytest.mark.parametrize(
    ("addresses", "dials"),
    [((THERE,), 1), ((ELSEWHERE,), 0), (("/ip4/8.8.8.8/tcp/22",), 0), (("x",), 0), ((), 0), ((THERE, ELSEWHERE), 1)],
)
def test_who_is_not_reached_waits_equally_long_whatever_is_there(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Awaitable[bool]], addresses: tuple[str, ...], dials: int
) -> None:
    assert knocked(monkeypatch, answer, addresses) == ("", pytest.approx(KNOCK_SECONDS), dials)


def test_who_is_reached_hears_of_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert knocked(monkeypatch, answers_late, (ELSEWHERE, THERE)) == (THERE, pytest.approx(0.5), 1)
