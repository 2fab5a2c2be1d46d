"""Each kind of lie that the lab measures has a test in which the defence holds, and one in which it is switched off and
the lie goes through. The virtual world has no numbers, so that one test there stands for six kinds of numbers; that
each kind of number is far enough off is shown where there are numbers."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import pytest

from ftnode.lab.liars.ground import AS_HEAD, ONE_EACH, WITH_ROOM, WITHOUT_SHADOW
from ftnode.lab.liars.kinds import KINDS


class Shown(NamedTuple):
    """By which tests, as module:function below `tests`."""

    holds: tuple[str, ...]
    planted: tuple[str, ...]


GRADIENTS: Final = Shown(
    ("sim.test_checks:test_who_gives_something_else_to_a_sum_goes_and_nobody_else",
     "node.reduction.test_checked_parts:test_every_lie_is_seen"),
    ("sim.test_checks:test_a_comparison_that_says_yes_to_everything_finds_nobody",
     "sim.test_liars:test_without_the_defence_it_stays"),
)  # fmt: skip
ACTIVATIONS: Final = Shown(
    ("sim.test_checks:test_who_passes_on_something_else_goes_and_nobody_else",
     "node.compute.test_recount:test_what_was_passed_on_is_compared",
     "node.compute.test_recount:test_each_kind_of_number_is_far_off_in_every_encoding"),
    ("sim.test_checks:test_where_what_was_passed_on_is_not_compared_nobody_finds_it",),
)  # fmt: skip
FAR_OUT: Final = Shown(
    (*ACTIVATIONS.holds, "sim.test_watched:test_whose_tensors_are_far_out_is_found_in_the_next_steps"),
    (*ACTIVATIONS.planted, "sim.test_watched:test_planted_without_a_part_of_it_nobody_finds_the_liar"),
)
TURNED: Final = Shown(
    (*ACTIVATIONS.holds, "sim.test_watched:test_whose_activations_point_elsewhere_is_found_in_the_next_steps"),
    (*ACTIVATIONS.planted, "sim.test_watched:test_planted_where_nobody_looks_at_directions_it_stays"),
)
ONLY_HOLDER: Final = Shown(
    ("sim.test_checks:test_whoever_held_a_stage_alone_gets_a_second_one_beside_it",),
    ("sim.test_checks:test_planted_nobody_holds_a_stage_for_the_sake_of_checks",),
)
"""Where nobody has room it is not defended."""
IN_SHADOW: Final = Shown(
    (
        "sim.test_only_holders:test_who_passes_on_something_else_goes",
        "sim.test_only_holders:test_a_keeper_beside_the_stage_sees_it_too",
    ),
    ("sim.test_only_holders:test_without_a_part_of_it_the_liar_stays",),
)
THE_HEAD: Final = Shown(
    ("sim.test_lying_heads:test_a_head_that_passes_on_something_else_goes_also_while_it_leads",),
    ("sim.test_lying_heads:test_without_a_part_of_it_the_liar_leads_on",),
)
TRAINS: Final = Shown(
    ("sim.test_only_holders:test_who_trains_with_something_else_goes",
     "node.compute.test_retrace:test_such_a_holder_goes_after_some_steps"),
    ("sim.test_only_holders:test_without_a_part_of_it_who_trains_with_something_else_stays",),
)  # fmt: skip
ON_GUARD: Final = Shown(
    ("sim.test_only_holders:test_who_lends_no_samples_and_trains_with_something_else_goes",
     "node.compute.test_course:test_nor_do_they_where_it_trains_rightly_in_the_steps_that_are_looked_at"),
    ("sim.test_only_holders:test_planted_where_nobody_looks_which_way_weights_go_it_stays",),
)  # fmt: skip
LARGEST: Final = Shown(
    ("models.test_stage:test_numbers_near_the_largest_float_are_refused_by_who_gets_them_first",),
    ("models.test_stage:test_planted_only_the_plain_sum_of_a_tensor_is_looked_at",),
)
NUMBERS: Final = ("times1000", "times1.5", "turned", "noise", "older", "zero")
TABLE: Final[dict[str, Shown]] = {
    **{f"gradients-{name}": GRADIENTS for name in NUMBERS},
    **{f"activations-{name}": ACTIVATIONS for name in NUMBERS},
    "activations-times1000": FAR_OUT,
    "activations-zero": FAR_OUT,
    "activations-turned": TURNED,
    "tenth-of-visits": Shown(
        ("sim.test_liars:test_a_liar_is_found_and_nobody_honest_goes",),
        ("sim.test_liars:test_without_the_defence_it_stays",),
    ),
    "from-step-200": Shown(("sim.test_liars:test_one_that_lies_late_is_found_as_soon",), GRADIENTS.planted),
    "times1.5-from-step-200": Shown(
        ("protocol.step.test_doubts:test_half_as_much_again_is_checked_within_twenty_steps_where_sizes_are_even",),
        ("protocol.step.test_doubts:test_planted_where_no_sizes_are_added_up_half_as_much_again_is_usual",),
    ),
    "tenth-from-step-200": Shown(
        ("protocol.step.test_doubts:test_who_lies_now_and_then_is_checked_again_and_again",),
        ("protocol.step.test_doubts:test_planted_without_what_is_kept_of_each_it_is_seldom_checked",),
    ),
    "tensors-hidden": Shown(
        ("sim.test_hidden_tensors:test_who_shows_nobody_its_tensors_goes_and_nobody_else",),
        ("sim.test_hidden_tensors:test_planted_nobody_says_that_it_is_not_shown_something",),
    ),
    **{kind.name: ONLY_HOLDER for kind in KINDS if kind.layout in (WITHOUT_SHADOW, WITH_ROOM)},
    **{kind.name: IN_SHADOW for kind in KINDS if kind.layout == ONE_EACH},
    **{kind.name: THE_HEAD for kind in KINDS if kind.layout == AS_HEAD},
    **{f"only-holder-gradients-{name}": TRAINS for name in ("turned", "noise", "older", "zero")},
    **{kind.name: ON_GUARD for kind in KINDS if kind.name.endswith(("-unsampled", "-adapted"))},
    "only-holder-activations-largest": LARGEST,
    "only-holder-without-shadow-activations-largest": LARGEST,
    "only-holder-with-standby-activations-largest": LARGEST,
    "wrong-hashes": Shown(
        ("sim.test_liars:test_a_liar_is_found_and_nobody_honest_goes",),
        ("sim.test_liars:test_without_comparing_sums_weights_part",),
    ),
    "ready-without-work": Shown(
        ("sim.test_liars:test_a_liar_is_found_and_nobody_honest_goes",),
        ("sim.test_liars:test_without_the_defence_it_stays",),
    ),
    "wrong-donor": Shown(
        ("sim.test_lent_weights:test_who_lends_other_weights_than_it_works_with_is_not_believed",),
        ("sim.test_lent_weights:test_where_nobody_tries_them_the_group_is_apart",),
    ),
    "wrong-neighbour": Shown(
        ("sim.test_lying_donors:test_a_neighbour_that_lends_other_weights_lends_nothing",
         "sim.test_liars:test_who_lends_other_weights_for_a_lost_stage_beside_it_does_no_harm"),
        ("sim.test_lying_donors:test_where_nobody_tries_what_was_lent_the_lie_gets_in",
         "sim.test_liars:test_where_donors_are_not_tried_their_lie_gets_in"),
    ),
    "wrong-copies": Shown(
        ("sim.test_lying_copies:test_of_two_keepers_of_the_head_the_honest_one_lends",),
        ("sim.test_lying_copies:test_without_the_comparison_the_lie_gets_in",),
    ),
    "false-accuser": Shown(
        ("sim.test_liars:test_one_that_accuses_goes_and_takes_nobody_along",
         "sim.test_probation:test_the_word_of_a_newcomer_costs_nobody_a_place_but_itself"),
        ("sim.test_liars:test_without_a_third_and_a_memory_one_that_accuses_outlives_more_of_them",
         "sim.test_probation:test_without_probation_and_a_third_it_costs_one_that_is_honest_its_place"),
    ),
    "two-that-agree": Shown(
        ("sim.test_probation:test_two_newcomers_that_tell_the_same_lie_cost_nobody_older_its_place",),
        ("sim.test_probation:test_without_probation_the_two_outvote_it",),
    ),
    "sums-turned": Shown(
        ("node.reduction.test_added_up_again:test_another_sum_is_seen_by_who_checks_and_by_a_third",),
        ("node.reduction.test_added_up_again:test_planted_parts_that_nobody_verifies",
         "node.reduction.test_added_up_again:test_planted_whoever_cuts_a_part_off_looks_like_a_liar"),
    ),
    "sums-turned-hidden": Shown(
        ("sim.test_hidden_parts:test_who_shows_nobody_its_parts_goes_and_nobody_else",
         "node.reduction.test_added_up_again:test_an_owner_cannot_say_that_it_cut_a_part_off_that_is_within_bounds"),
        ("sim.test_hidden_parts:test_planted_nobody_says_that_it_was_shown_nothing",
         "sim.test_hidden_parts:test_planted_the_word_of_one_is_enough"),
    ),
    "sums-turned-from-step-200": Shown(
        ("protocol.step.test_doubts:test_who_makes_another_sum_of_its_piece_is_checked_soon",
         "node.reduction.test_added_up_again:test_each_that_gave_a_part_sees_which_way_and_how_large_the_sum_of_it_is"),
        ("protocol.step.test_doubts:test_planted_where_nobody_looks_at_sums_it_is_not",),
    ),
    "fifty-identities": Shown(
        ("sim.test_crowds:test_fifty_of_one_machine_are_no_quorum_and_no_majority_of_a_group",),
        ("sim.test_crowds:test_without_a_look_at_groups_they_are_most_of_one_and_no_quorum",
         "sim.test_crowds:test_without_the_bound_they_choose_the_next_view"),
    ),
}  # fmt: skip


def test_every_kind_has_its_tests() -> None:
    assert {*TABLE} == {kind.name for kind in KINDS}
    assert all(shown.holds and shown.planted for shown in TABLE.values())


TESTS: Final = {test for shown in TABLE.values() for each in shown for test in each}


@pytest.mark.parametrize("test", sorted(TESTS))
def test_the_tests_are_there(test: str) -> None:
    module, _, name = test.partition(":")
    assert callable(getattr(importlib.import_module(f"tests.{module}"), name))
