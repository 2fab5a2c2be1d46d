"""What `ftnode run init` says of checks."""

from __future__ import annotations

import pytest

from ftnode.node.manifests.check_choice import CHECKS, checks_text, with_checks
from ftnode.node.manifests.line_choice import Choice, choose
from ftnode.node.manifests.presets import PRESETS


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (None, f"checks {CHECKS:g}: others do 2 % of the visits again"),
        (0.5, "checks 0.5: others do 50 % of the visits again"),
        (0.0, "checks 0: nobody does work again"),
    ],
)
def test_one_line_says_how_much_is_checked(share: float | None, says: str) -> None:
    made: Choice = with_checks(choose(PRESETS["tiny"], None), share)
    text = checks_text(made.manifest)
    assert text.startswith(says) and "--checks" in text and "\n" not in text
