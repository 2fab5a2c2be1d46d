"""What a machine gives a run, and what limits it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ftnode.node.manifests.presets import preset
from ftnode.node.owner.announcements import capacity_of
from ftnode.node.owner.offer import HEAD, HOLD, LINE, MEMORY, PACE, Offer, offer_of
from ftnode.protocol.manifest.parse import Manifest

TINY = preset("tiny")
EVERY = TINY.pipeline.stages + 1
TOKENS = TINY.batch.microbatches * TINY.batch.sequences * TINY.model.context
STAGE = 100 << 20


def ready(free: int, speed: float = 1e9, device: str = "RTX 3090", precision: str = "bfloat16") -> dict[str, Any]:
    return {"device": device, "precision": precision, "memory_free": free, "stage_bytes": STAGE, "activation_bytes": 0,
            "tokens_per_second": speed, "threads": 1}  # fmt: skip


def offered(*devices: dict[str, Any], hold: int = EVERY, up: float = 0.0, manifest: Manifest = TINY) -> Offer:
    room = [capacity_of(each, hold, manifest.pipeline.live_activations) for each in devices]
    return offer_of(manifest, devices, room, hold, up)


@pytest.mark.parametrize(
    ("free", "hold", "stages", "limited_by"),
    [
        ((STAGE * EVERY,), EVERY, EVERY, ""),
        ((STAGE * 2,), EVERY, 2, MEMORY),
        ((STAGE * 2,), 1, 1, HOLD),
        ((STAGE * 2,), 2, 2, HOLD),
        ((STAGE, STAGE), EVERY, 2, MEMORY),
        ((STAGE * EVERY, STAGE), EVERY, EVERY, ""),
        ((STAGE - 1,), EVERY, 0, MEMORY),
    ],
)
def test_how_many_stages_and_why_no_more(free: tuple[int, ...], hold: int, stages: int, limited_by: str) -> None:
    offer = offered(*map(ready, free), hold=hold)
    assert (offer.stages, offer.of, offer.stages_limited_by) == (stages, EVERY, limited_by)
    (text, fields), _ = offer.lines
    assert text.startswith(f"room for {stages} of the run's {EVERY} stages")
    assert fields == {"stages": stages, "of": EVERY, "limited_by": limited_by}


@pytest.mark.parametrize(
    ("free", "hold", "stages", "limited_by", "said"),
    [
        (STAGE * EVERY, EVERY, EVERY - 1, HEAD, f"room for {EVERY - 1} of the run's {EVERY} stages, all but the head"),
        (STAGE * 2, EVERY, 2, MEMORY, f"room for 2 of the run's {EVERY} stages; memory limits it"),
        (STAGE * EVERY, 1, 1, HOLD, f"room for 1 of the run's {EVERY} stages; --hold limits it"),
        (STAGE - 1, EVERY, 0, MEMORY, f"room for 0 of the run's {EVERY} stages; memory limits it"),
    ],
)
def test_who_has_not_the_runs_text_has_no_room_for_all_stages(
    free: int, hold: int, stages: int, limited_by: str, said: str
) -> None:
    each = ready(free)
    room = [capacity_of(each, hold, TINY.pipeline.live_activations)]
    offer = offer_of(TINY, [each], room, hold, 0.0, head=False)
    assert (offer.stages, offer.stages_limited_by, offer.lines[0][0]) == (stages, limited_by, said)


def test_the_line_limits_where_it_takes_longer_than_the_device() -> None:
    sent = TINY.batch.microbatches * TINY.boundary_bytes.both
    slow, fast = offered(ready(STAGE, TOKENS / 60), up=sent), offered(ready(STAGE, TOKENS * 60), up=sent)
    assert slow.line_seconds == fast.line_seconds == 1.0
    assert (slow.step_seconds, fast.step_seconds) == (pytest.approx(60), pytest.approx(1 / 60))
    assert (slow.pace_limited_by, fast.pace_limited_by) == (PACE, LINE)
    assert slow.lines[1][0].endswith("1 s: the device's pace limits it") and "takes the device 60 s" in slow.lines[1][0]
    assert fast.lines[1][0].endswith("limits it") and "the device's" not in fast.lines[1][0]


def test_a_line_that_nobody_named_is_a_homes() -> None:
    assert "and a home's line of 20/100 Mbit/s" in offered(ready(STAGE)).lines[1][0]
    assert "and a line of 8/40 Mbit/s" in offered(ready(STAGE), up=1e6).lines[1][0]


def test_the_slowest_device_sets_the_pace() -> None:
    offer = offered(ready(STAGE, TOKENS), ready(STAGE, TOKENS / 4))
    assert offer.step_seconds == pytest.approx(4)


def test_where_not_even_one_fits_that_is_said() -> None:
    assert offered(ready(STAGE)).too_small == ""
    offer = offered(ready(STAGE // 4, device="GT 710"), ready(STAGE // 2))
    assert offer.too_small == (
        "not even one stage of this run fits: it takes 100 MiB with what goes with it, and 50 MiB are free on RTX 3090"
    )


def test_programs_read_it_as_json() -> None:
    found = json.loads(json.dumps(offered(ready(STAGE)).fields()))
    assert found["devices"][0] == {"name": "RTX 3090", "precision": "bfloat16", "memory_free": STAGE,
                                   "stage_bytes": STAGE, "stages": 1, "tokens_per_second": 1e9}  # fmt: skip
    assert found["pace_limited_by"] == LINE and found["up_known"] is False


def test_copies_take_their_part() -> None:
    manifest = replace(TINY, recovery=replace(TINY.recovery, shadow_every=1))
    offer = offer_of(manifest, [ready(STAGE)], [0], EVERY, 0.0, (1 << 20, 2 << 20))
    assert offer.devices[0].stage_bytes == STAGE + (3 << 20)
