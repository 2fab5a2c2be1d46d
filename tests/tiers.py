"""What every change has to pass, and what is left to the night (`make night`): marks tests `night`.

Whoever changes something waits for the tests. So of each kind of swarm one is started for every change, and of each
test of the virtual world that takes seeds some are played. The others vary these: other seeds, other signals, other
codecs, the second way round. They run before a release, and when somebody works on what they are about.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SEEDS_PLAYED: Final = 1
"""Of each test with seeds in the virtual world, the first one; and every one that has failed before."""
NIGHT_ONLY: Final = 3
"""A test that takes many seeds at once takes one in so many of them for every change."""
WORLD: Final = "tests/sim/"
KEPT: Final = "test_a_seed_that_once_failed_holds"

NIGHT: Final = frozenset({
    "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/export-a-model.md]",
    "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/lend-a-machine.md]",
    "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/limit-a-machine.md]",
    "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/run-as-a-service.md]",
    "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/use-the-dashboard.md]",
    "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/watch-a-run.md]",
    "tests/lab/hostile/test_hostile.py::test_newcomers_that_accept_everything_and_do_nothing_cost_the_others_nothing",
    "tests/swarm/test_adapters.py::test_a_part_of_a_model_is_trained_by_a_swarm_that_loses_a_stage"
    "[{'train': 'last 2 layers'}]",
    "tests/swarm/test_adapters.py::test_stages_without_a_state_are_handed_over_saved_and_begun_again",
    "tests/swarm/test_demo.py::test_replicas_take_a_kill_and_a_stage_without_holders_is_rebuilt",
    "tests/swarm/test_demo.py::test_a_demo_that_is_ended_leaves_no_process[15]",
    "tests/swarm/test_demo.py::test_a_demo_that_is_ended_leaves_no_process[9]",
    "tests/swarm/test_elastic.py::test_a_killed_replica_costs_nothing_but_time",
    "tests/swarm/test_elastic.py::test_groups_of_four_lose_members_of_two_stages_at_once",
    "tests/swarm/test_elastic.py::test_a_run_grows_to_six_and_shrinks_to_two_without_losing_a_step",
    "tests/swarm/test_exactness.py::test_in_double_precision_deaths_leave_no_trace[adam]",
    "tests/swarm/test_exactness.py::test_in_double_precision_deaths_leave_no_trace[muon]",
    "tests/swarm/test_exactness.py::test_in_double_precision_deaths_leave_no_trace[int4]",
    "tests/swarm/test_exactness.py::test_in_double_precision_deaths_leave_no_trace[subspace]",
    "tests/swarm/test_exactness.py::test_with_encoded_sums_replicas_are_alike_after_every_step_and_deaths",
    "tests/swarm/test_exactness.py::test_in_single_precision_deaths_do_no_more_than_another_split",
    "tests/swarm/test_export.py::test_the_tokenizer_of_shards_comes_with_the_model",
    "tests/swarm/test_flood.py::test_a_flood_costs_the_flooder_its_connection_and_the_run_nothing",
    "tests/swarm/test_foreign_addresses.py::test_nobody_is_dialled_because_a_stranger_says_so",
    "tests/swarm/test_full_disk.py::test_a_volunteer_on_a_full_disk_trains_pauses_resumes_and_leaves",
    "tests/swarm/test_hostile.py::test_the_swarm_goes_on_during_the_attack_and_after_it[certified-last-number]",
    "tests/swarm/test_hostile.py::test_the_swarm_goes_on_during_the_attack_and_after_it[silent-presences]",
    "tests/swarm/test_hostile.py::test_the_swarm_goes_on_during_the_attack_and_after_it[nesting-member]",
    "tests/swarm/test_hostile.py::test_the_swarm_goes_on_during_the_attack_and_after_it[unready-learner]",
    "tests/swarm/test_ladder.py::test_an_end_of_the_pipeline_is_copied_from_its_neighbour",
    "tests/swarm/test_ladder.py::test_swapped_routes_let_the_partner_take_an_ends_place",
    "tests/swarm/test_ladder.py::test_adjacent_stages_come_back_from_their_shadows",
    "tests/swarm/test_ladder.py::test_a_donor_that_is_stopped_while_it_gives_does_not_hold_the_recovery_up",
    "tests/swarm/test_liars.py::test_who_lies_about_a_gradient_is_found_and_nobody_else[turned]",
    "tests/swarm/test_liars.py::test_who_lies_about_a_gradient_is_found_and_nobody_else[older]",
    "tests/swarm/test_liars.py::test_who_sends_numbers_near_the_largest_float_goes_and_takes_one_along_at_most",
    "tests/swarm/test_liars.py::test_a_third_decides_and_signed_words_of_it_are_kept",
    "tests/swarm/test_limits.py::test_a_swarm_trains_within_narrow_limits_and_loses_nobody",
    "tests/swarm/test_limits.py::test_who_has_everything_to_do_keeps_to_one_core_and_its_memory",
    "tests/swarm/test_lines.py::test_a_newcomer_finds_a_swarm_whose_lines_are_full_and_gets_what_its_own_can_carry",
    "tests/swarm/test_losses.py::test_two_non_adjacent_stages_are_lost_together",
    "tests/swarm/test_losses.py::test_a_node_whose_compute_dies_gives_the_stage_up_at_once_and_is_a_standby",
    "tests/swarm/test_losses.py::test_the_bootstrap_may_die_and_come_back_as_itself",
    "tests/swarm/test_losses.py::test_a_stopped_holder_is_replaced_and_a_standby_when_it_goes_on",
    "tests/swarm/test_losses.py::test_of_two_volunteers_the_survivor_founds_a_lineage_and_goes_on",
    "tests/swarm/test_moving.py::test_a_volunteer_with_ipv6_alone_moves_to_another_network",
    "tests/swarm/test_moving.py::test_a_volunteer_that_was_without_network_for_a_moment_goes_on",
    "tests/swarm/test_moving.py::test_a_volunteer_whose_router_gets_another_address_goes_on[port-restricted]",
    "tests/swarm/test_moving.py::test_a_run_over_both_kinds_of_ip",
    "tests/swarm/test_owner.py::test_who_is_alone_in_a_run_stands_still_and_loses_nothing",
    "tests/swarm/test_owner.py::test_when_both_pause_at_once_one_stays_with_all_of_it",
    "tests/swarm/test_owner.py::test_a_home_that_was_paused_starts_paused_and_ends_when_it_is_told",
    "tests/swarm/test_owner.py::test_an_owner_who_presses_again_and_again",
    "tests/swarm/test_owner.py::test_a_terminal_that_is_really_closed",
    "tests/swarm/test_owner.py::test_the_live_line_of_a_terminal[('--quiet',)]",
    "tests/swarm/test_owner.py::test_the_live_line_of_a_terminal[('--log-format', 'json')]",
    "tests/swarm/test_owner.py::test_killed_while_paused_it_is_still_paused",
    "tests/swarm/test_planner.py::test_unequal_volunteers_come_near_the_best_layout_and_a_fast_one_takes_a_range",
    "tests/swarm/test_relay.py::test_who_relays_is_credited_with_what_goes_through_it",
    "tests/swarm/test_relay.py::test_when_no_member_can_be_reached_the_meeting_point_tells_on_what_they_signed",
    "tests/swarm/test_routers.py::test_a_router_that_keeps_a_port_open_is_asked_to_unless_its_owner_says_no[nat-pmp]",
    "tests/swarm/test_routers.py::test_where_routers_cannot_be_opened_the_run_trains_through_the_meeting_point",
    "tests/swarm/test_routers.py::test_a_relay_that_is_killed_in_mid_step_costs_a_redial",
    "tests/swarm/test_routers.py::test_some_pairs_of_the_matrix",
    "tests/swarm/test_slow_lines.py::test_slow_is_not_dead",
    "tests/swarm/test_subspace.py::test_a_stage_is_blended_and_the_export_has_the_swarms_loss",
    "tests/swarm/test_switched_off.py::test_who_leaves_last_saves_first_and_its_next_life_goes_on_from_there",
    "tests/swarm/test_two_devices.py::test_a_run_whose_activations_do_not_all_fit_is_joined_with_fewer",
    "tests/swarm/test_watching.py::test_who_hands_over_when_the_run_ends_keeps_the_last_copy",
    "tests/swarm/test_watching.py::test_a_relayed_peer_is_seen_as_such",
})  # fmt: skip
"""Tests, or single cases of them."""


def seeds(count: int) -> range:
    """The first ones for every change; as many as `count` in the night (FTNODE_NIGHT)."""
    return range(1, 1 + (count if os.environ.get("FTNODE_NIGHT") else count // NIGHT_ONLY))


def mark(items: list[pytest.Item]) -> None:
    """Those that are left to the night."""
    played = Counter[tuple[str, ...]]()
    for item in items:
        name = item.path.relative_to(ROOT).as_posix() + "::" + item.name
        if (
            name in NIGHT
            or name.partition("[")[0] in NIGHT
            or (name.startswith(WORLD) and _played_enough(item, played))
        ):
            item.add_marker(pytest.mark.night)


def _played_enough(item: pytest.Item, played: Counter[tuple[str, ...]]) -> bool:
    """Another seed of a test, all else being the same."""
    params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    if "seed" not in params or item.name.startswith(KEPT):
        return False
    del params["seed"]
    same = str(item.path), item.name.partition("[")[0], *(f"{key}={params[key]}" for key in sorted(params))
    played[same] += 1
    return played[same] > SEEDS_PLAYED
