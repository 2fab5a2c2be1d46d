"""Shares of donors, by hand."""

from __future__ import annotations

from math import inf, nan

import pytest

from ftnode.protocol.words.donor_shares import WEIGHTINGS, shares


@pytest.mark.parametrize(
    ("norms_squared", "distances", "weighting", "clip", "expected"),
    [
        ((3.0, 1.0), (), "squared-norm", inf, (0.75, 0.25)),
        ((9.0, 1.0), (), "norm", inf, (0.75, 0.25)),
        ((9.0, 1.0), (), "inverse-norm", inf, (0.25, 0.75)),
        ((9.0, 1.0), (), "uniform", inf, (0.5, 0.5)),
        ((9.0, 1.0), (1, 1), "squared-norm", 1.0, (0.5, 0.5)),  # both clip: the published code averages uniformly
        ((9.0, 0.25), (), "norm", 1.0, (2 / 3, 1 / 3)),
        ((1.0, 1.0), (1, 2), "squared-norm", inf, (2 / 3, 1 / 3)),  # of three stages, the first is lost with the second
        ((1.0, 4.0), (1, 2), "squared-norm", inf, (1 / 3, 2 / 3)),
        ((0.0, 0.0), (1, 3), "squared-norm", inf, (0.75, 0.25)),
        ((nan, 1.0), (), "squared-norm", inf, (0.5, 0.5)),
        ((inf, 1.0), (), "norm", inf, (0.5, 0.5)),
        ((-1.0, 2.0), (), "squared-norm", inf, (0.5, 0.5)),
        ((0.0, 0.0), (), "inverse-norm", inf, (0.5, 0.5)),
        ((7.0,), (2,), "squared-norm", inf, (1.0,)),
    ],
)
def test_by_hand(
    norms_squared: tuple[float, ...],
    distances: tuple[int, ...],
    weighting: str,
    clip: float,
    expected: tuple[float, ...],
) -> None:
    assert shares(norms_squared, distances, weighting, clip) == pytest.approx(expected)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_shares_add_up_whatever_the_norms(weighting: str) -> None:
    for norms in ((1e-30, 1e30), (1e300, 1e300), (0.0, 5.0), (5e-324, 1.0)):
        assert sum(shares(norms, (1, 2), weighting)) == pytest.approx(1)
        assert min(shares(norms, (1, 2), weighting)) >= 0


def test_an_unknown_weighting_is_refused() -> None:
    with pytest.raises(ValueError, match="weighting is one of"):
        shares((1.0, 1.0), (), "loudest")
