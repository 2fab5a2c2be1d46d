"""What every change has to pass, and what is left to the night (`make night`): marks tests `night`.

Whoever changes something waits for the tests. So what a swarm must be able to do is shown once by a real one for every
change, and of each test of the virtual world that takes seeds some are played, with each planted bug. The others vary
these: other seeds, other signals, other codecs, the second way round; or they show with real processes what the virtual
world shows. They run before a release, and when somebody works on what they are about.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SEEDS_PLAYED: Final = 1
"""Of each test with seeds in the virtual world, the first one."""
NIGHT_ONLY: Final = 8
"""A test that takes many seeds at once takes one in so many of them for every change."""
WORLD: Final = "tests/sim/"
KEPT: Final = "test_a_seed_that_once_failed_holds"
KEPT_PLAYED: Final = 4
"""One in so many of the seeds that have failed before: the core has changed since, and with it what they meet."""

LONG_PLANTED: Final = "planted bugs that take long to show, where the same file plants others"
NIGHT: Final[dict[str, tuple[str, ...]]] = {
    "commands of pages; those of the README and of the tutorial are run": (
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/export-a-model.md]",
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/install.md]",
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/keep-snapshots.md]",
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/lend-a-machine.md]",
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/limit-a-machine.md]",
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/run-as-a-service.md]",
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/start-a-run.md]",
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/use-the-dashboard.md]",
        "tests/docs/test_shell_blocks.py::test_whole_pages[docs/how-to/watch-a-run.md]",
    ),
    "the same with other numbers of peers, or with each of two who differ in one thing": (
        "tests/sim/test_checks.py::test_a_liar_is_found_after_about_as_many_steps_as_the_share_of_checks_says"
        "[True-20-2]",
        "tests/sim/test_checks.py::test_a_liar_is_found_after_about_as_many_steps_as_the_share_of_checks_says"
        "[False-8-2]",
        "tests/sim/test_checks.py::test_an_honest_swarm_whose_parts_have_heavy_tails_accuses_nobody[2]",
        "tests/sim/test_checks.py::test_whoever_held_a_stage_alone_gets_a_second_one_beside_it[5-3]",
        "tests/sim/test_crowds.py::test_fifty_of_one_machine_are_no_quorum_and_no_majority_of_a_group[1-1]",
        "tests/sim/test_groups.py::test_sixteen_holders_of_each_stage",
        "tests/sim/test_only_holders.py::test_a_keeper_beside_the_stage_sees_it_too[2-2-activations]",
        "tests/sim/test_only_holders.py::test_a_keeper_beside_the_stage_sees_it_too[2-2-training]",
        "tests/sim/test_only_holders.py::test_a_keeper_beside_the_stage_sees_it_too[3-3-activations]",
        "tests/sim/test_only_holders.py::test_a_keeper_beside_the_stage_sees_it_too[3-3-gradients]",
        "tests/sim/test_only_holders.py::test_nobody_is_sent_the_same_tensor_again_and_again[5-False]",
        "tests/sim/test_only_holders.py::test_nobody_is_sent_the_same_tensor_again_and_again[5-True]",
        "tests/sim/test_only_holders.py::test_the_share_of_checks_says_how_many_visits_are_done_again[0.0-0-0]",
        "tests/sim/test_only_holders.py::test_the_share_of_checks_says_how_many_visits_are_done_again[0.1-0.03-0.15]",
        "tests/sim/test_routers.py::test_all_is_well_in_the_end[range(20, 40)]",
        "tests/sim/test_routers.py::test_all_is_well_in_the_end[range(40, 60)]",
        "tests/sim/test_routers.py::test_all_is_well_in_the_end[range(60, 80)]",
        "tests/sim/test_third.py::test_who_is_found_by_two_is_not_taken_back_and_nobody_is_remembered[1-4]",
        "tests/sim/test_unequal.py::test_seven_volunteers_do_not_stay_far_from_the_best",
        "tests/sim/test_watched.py::test_an_honest_swarm_with_heavy_tails_accuses_nobody[2]",
        "tests/swarm/test_losses.py::test_one_volunteer_holds_all",
    ),
    LONG_PLANTED: (
        "tests/sim/test_at_odds.py::test_without_a_memory_of_sums_the_older_one_stays_for_ever",
        "tests/sim/test_bad_newcomers.py::test_a_leader_that_waits_for_it_for_ever_is_slower",
        "tests/sim/test_checks.py::test_planted_nobody_holds_a_stage_for_the_sake_of_checks",
        "tests/sim/test_checks.py::test_without_a_memory_an_accuser_wins_for_ever",
        "tests/sim/test_crowds.py::test_without_a_look_at_groups_they_are_most_of_one_and_no_quorum",
        "tests/sim/test_false_presences.py::test_a_planted_bug_is_found[records_are_candidates-crowd0]",
        "tests/sim/test_forged_views.py::test_a_planted_bug_is_found[the_directory_is_believed-claimed]",
        "tests/sim/test_former_holders.py::test_planted_only_the_first_view_of_a_lineage_tells_where_it_comes_from",
        "tests/sim/test_goals.py::test_when_a_member_is_lost_it_goes_to_what_is_best_without_it"
        "[who is lost does not count]",
        "tests/sim/test_hidden_parts.py::test_planted_nobody_is_asked_for_longer_than_a_moment",
        "tests/sim/test_hidden_parts.py::test_planted_who_is_shown_nothing_is_in_the_wrong",
        "tests/sim/test_hidden_parts.py::test_planted_whoever_says_it_is_always_heard",
        "tests/sim/test_hidden_tensors.py::test_planted_whoever_says_it_is_always_heard",
        "tests/sim/test_lying_disks.py::test_a_planted_bug_is_found[no_rolls-<lambda>]",
        "tests/sim/test_lying_members.py::test_a_planted_bug_is_found[forked_attempts_go_on]",
        "tests/sim/test_lying_members.py::test_a_planted_bug_is_found[two_words_are_not_compared]",
        "tests/sim/test_only_holders.py::test_without_a_part_of_it_who_trains_with_something_else_stays"
        "[nothing is compared]",
        "tests/sim/test_only_holders.py::test_without_a_part_of_it_who_trains_with_something_else_stays"
        "[nothing is enough]",
        "tests/sim/test_only_holders.py::test_without_a_part_of_it_who_trains_with_something_else_stays"
        "[nothing speaks against anybody]",
        "tests/sim/test_picture.py::test_a_planted_change_of_view_that_no_effect_tells_of_is_found",
        "tests/sim/test_planted_in_steps.py::test_a_planted_bug_is_found[sums of an earlier view]",
        "tests/sim/test_planted_restarts.py::test_planted_any_weights_block",
        "tests/sim/test_planted_restarts.py::test_planted_liars_are_believed",
        "tests/sim/test_probation.py::test_without_more_checks_of_newcomers_it_often_gets_a_vote",
        "tests/sim/test_probation.py::test_without_probation_the_two_outvote_it",
        "tests/sim/test_rollback.py::test_a_planted_bug_is_found[nothing_is_undone-starts_again]",
        "tests/sim/test_vouched.py::test_without_that_they_are_not",
        "tests/sim/test_watched.py::test_planted_without_a_budget_everybody_checks_in_every_step",
        "tests/sim/test_watched.py::test_planted_without_a_budget_for_each_a_liar_spends_that_of_all",
    ),
    "deaths at other moments of the same exchange": (
        "tests/sim/test_misfortunes.py::"
        "test_a_majority_does_not_yield_to_a_leader_that_was_deaf_and_founded_a_lineage_alone[1.0-2.6]",
        "tests/sim/test_misfortunes.py::"
        "test_a_majority_does_not_yield_to_a_leader_that_was_deaf_and_founded_a_lineage_alone[1.0-3.0]",
        "tests/sim/test_misfortunes.py::"
        "test_a_majority_does_not_yield_to_a_leader_that_was_deaf_and_founded_a_lineage_alone[1.0-3.6]",
        "tests/sim/test_misfortunes.py::"
        "test_a_majority_does_not_yield_to_a_leader_that_was_deaf_and_founded_a_lineage_alone[1.5-2.6]",
        "tests/sim/test_moments_of_change.py::test_a_death_while_a_replica_learns_leaves_no_trace[first donor]",
        "tests/sim/test_moments_of_change.py::test_a_death_while_a_replica_learns_leaves_no_trace[second donor]",
        "tests/sim/test_moments_of_change.py::test_a_death_while_a_stage_is_handed_over[leader-by one that leaves]",
        "tests/sim/test_moments_of_change.py::test_a_death_while_a_stage_is_handed_over[learner-of several stages one]",
        "tests/sim/test_moments_of_change.py::test_a_death_while_a_stage_is_handed_over[giver-of several stages one]",
        "tests/sim/test_moments_of_change.py::test_a_death_while_a_replica_learns_leaves_no_trace[leader]",
        "tests/sim/test_moments_of_change.py::test_a_second_death_before_whichever_message_of_an_election"
        "[early-in flight arrives]",
        "tests/sim/test_moments_of_change.py::test_a_second_death_before_whichever_message_of_an_election"
        "[early-in flight is lost]",
        "tests/sim/test_moments_of_change.py::test_a_second_death_before_whichever_message_of_an_election"
        "[late-in flight arrives]",
        "tests/sim/test_moments_of_change.py::test_a_second_death_before_whichever_message_of_an_election"
        "[late-in flight is lost]",
    ),
    "how well something does, where another test shows that it is done at all": (
        "tests/lab/codecs/test_codecs.py::test_a_contest_that_is_stopped_and_goes_on",
        "tests/lab/long_recovery/test_long_runs.py::test_it_leaves_results_tables_and_a_picture",
        "tests/lab/parts/test_watch.py::test_both_figures_are_measured",
        "tests/lab/parts/test_watchers.py::test_all_figures_are_measured",
        "tests/lab/recovery/test_recovery.py::test_it_leaves_tables_pictures_and_goes_on",
        "tests/lab/parts/test_gpu.py::test_four_nodes_on_one_device_against_one_process",
        "tests/lab/planner/test_memory.py::test_a_real_process_takes_no_more_than_it_says",
        "tests/protocol/planning/test_growing.py::test_unequal_volunteers_end_near_the_best_layout"
        "[by single changes alone]",
        "tests/sim/test_bad_newcomers.py::test_slow_newcomers_cost_a_tenth_and_what_the_last_of_them_cost",
        "tests/sim/test_bad_newcomers.py::test_who_says_that_it_is_slow_is_not_asked",
        "tests/sim/test_bad_newcomers.py::test_without_a_bound_they_cost_more",
        "tests/sim/test_crowds.py::test_coming_and_going_every_ten_seconds_costs_little_and_nothing_that_grows",
        "tests/sim/test_crowds.py::test_without_a_pause_for_the_crowd_each_of_them_is_asked",
        "tests/sim/test_groups.py::test_holders_do_not_flap_when_a_tenth_of_them_goes_every_hour",
        "tests/sim/test_groups.py::test_replicas_move_to_the_stage_that_limits_the_throughput_and_stay_there",
        "tests/sim/test_groups.py::test_with_a_threshold_that_lets_every_move_pass_they_would",
        "tests/sim/test_lent_weights.py::test_a_newcomer_whom_nobody_lies_to_comes_about_as_soon",
        "tests/sim/test_sites.py::test_no_stage_has_both_holders_at_one_site",
        "tests/sim/test_step_estimates.py::test_the_schedule_says_what_a_step_takes",
        "tests/sim/test_unequal.py::test_six_unequal_volunteers_find_a_layout_near_the_best",
        "tests/sim/test_vouched.py::test_where_nobody_vouched_nobody_else_is_new_again",
        "tests/sim/test_watched.py::test_that_is_long_before_its_lot",
    ),
    "that the worlds of the virtual world meet everything, which takes many of them": (
        "tests/sim/test_fuzz.py::test_lies_get_far",
        "tests/sim/test_lying_members.py::test_all_kinds_of_lies_are_told_and_liars_are_found",
        "tests/sim/test_virtual_world.py::test_every_fault_met_every_rung_and_a_group_that_goes_on",
    ),
    "other numbers and precisions of the same computation": (
        "tests/models/test_compiled.py::test_a_step_with_compiled_blocks_is_one_without",
        "tests/node/compute/test_planned_memory.py::"
        "test_what_is_planned_for_a_head_of_a_large_vocabulary_is_what_it_takes[float32]",
        "tests/node/weights/test_copies_of_torch.py::test_a_shadow_is_nearly_what_was_lost_and_outlives_compute"
        "[bfloat16-0.00390625-float64]",
        "tests/node/weights/test_copies_of_torch.py::test_a_shadow_is_nearly_what_was_lost_and_outlives_compute"
        "[int8-0.003937007874015748-float32]",
        "tests/swarm/test_adapters.py::test_a_part_of_a_model_is_trained_by_a_swarm_that_loses_a_stage",
        "tests/swarm/test_adapters.py::test_stages_without_a_state_are_handed_over_saved_and_begun_again",
        "tests/swarm/test_exactness.py::test_in_double_precision_deaths_leave_no_trace[adam]",
        "tests/swarm/test_exactness.py::test_in_double_precision_deaths_leave_no_trace[muon]",
        "tests/swarm/test_exactness.py::test_in_double_precision_deaths_leave_no_trace[int4]",
        "tests/swarm/test_exactness.py::test_in_double_precision_deaths_leave_no_trace[subspace]",
        "tests/swarm/test_exactness.py::test_with_encoded_sums_replicas_are_alike_after_every_step_and_deaths",
        "tests/swarm/test_exactness.py::test_in_single_precision_deaths_do_no_more_than_another_split",
        "tests/swarm/test_first_weights.py::test_a_model_trains_on_from_its_own_loss",
        "tests/swarm/test_export.py::test_the_tokenizer_of_shards_comes_with_the_model",
        "tests/swarm/test_liars.py::test_honest_holders_on_unlike_machines_agree_with_each_other",
        "tests/swarm/test_subspace.py::test_a_stage_is_blended_and_the_export_has_the_swarms_loss",
        "tests/swarm/test_two_devices.py::test_a_run_whose_activations_do_not_all_fit_is_joined_with_fewer",
        "tests/swarm/test_two_devices.py::test_stages_in_two_processes_of_one_node",
    ),
    "liars in real swarms whose lie the virtual world plays, and finds planted bugs with": (
        "tests/lab/hostile/test_hostile.py::"
        "test_newcomers_that_accept_everything_and_do_nothing_cost_the_others_nothing",
        "tests/swarm/test_flood.py::test_a_flood_costs_the_flooder_its_connection_and_the_run_nothing",
        "tests/swarm/test_foreign_addresses.py::test_nobody_is_dialled_because_a_stranger_says_so",
        "tests/swarm/test_liars.py::test_who_lies_about_a_gradient_is_found_and_nobody_else[turned]",
        "tests/swarm/test_liars.py::test_who_lies_about_a_gradient_is_found_and_nobody_else[older]",
        "tests/swarm/test_liars.py::test_who_sends_numbers_near_the_largest_float_goes_and_takes_one_along_at_most",
        "tests/swarm/test_liars.py::test_who_shows_a_checker_another_tensor_than_it_gave_goes_and_nobody_else",
        "tests/swarm/test_liars.py::test_who_was_convicted_stays_out_after_everybody_has_started_again",
        "tests/swarm/test_liars.py::test_a_third_decides_and_signed_words_of_it_are_kept",
        "tests/swarm/test_lying_disks.py::test_a_swarm_that_starts_again_does_not_go_on_from_what_a_liar_has",
        "tests/swarm/test_vouched.py::test_a_vouched_for_volunteer_takes_a_lost_ones_place_and_the_next_one_knows_it",
    ),
    "losses in real swarms that are another order of what is played, or that the virtual world plays": (
        "tests/swarm/test_demo.py::test_replicas_take_a_kill_and_a_stage_without_holders_is_rebuilt",
        "tests/swarm/test_elastic.py::test_a_killed_replica_costs_nothing_but_time",
        "tests/swarm/test_elastic.py::test_groups_of_four_lose_members_of_two_stages_at_once",
        "tests/swarm/test_elastic.py::test_the_leader_of_groups_dies_in_mid_step_and_the_step_goes_on",
        "tests/swarm/test_elastic.py::test_a_run_grows_to_six_and_shrinks_to_two_without_losing_a_step",
        "tests/swarm/test_ladder.py::test_an_end_of_the_pipeline_is_copied_from_its_neighbour",
        "tests/swarm/test_ladder.py::test_swapped_routes_let_the_partner_take_an_ends_place",
        "tests/swarm/test_ladder.py::test_adjacent_stages_are_interpolated_between_the_nearest_survivors",
        "tests/swarm/test_ladder.py::test_adjacent_stages_come_back_from_their_shadows",
        "tests/swarm/test_ladder.py::test_a_newcomer_that_dies_in_its_own_recovery_is_replaced",
        "tests/swarm/test_ladder.py::test_a_donor_that_is_stopped_while_it_gives_does_not_hold_the_recovery_up",
        "tests/swarm/test_left_out.py::test_a_stage_that_nobody_can_hold_is_left_out_and_comes_back",
        "tests/swarm/test_losses.py::test_two_non_adjacent_stages_are_lost_together",
        "tests/swarm/test_losses.py::test_a_node_whose_compute_dies_gives_the_stage_up_at_once_and_is_a_standby",
        "tests/swarm/test_losses.py::test_the_bootstrap_may_die_and_come_back_as_itself",
        "tests/swarm/test_losses.py::test_a_stopped_holder_is_replaced_and_a_standby_when_it_goes_on",
        "tests/swarm/test_losses.py::test_of_two_volunteers_the_survivor_founds_a_lineage_and_goes_on",
        "tests/swarm/test_notice.py::test_the_last_stage_is_handed_over_and_a_middle_one_is_rebuilt",
        "tests/swarm/test_planner.py::test_unequal_volunteers_come_near_the_best_layout_and_a_fast_one_takes_a_range",
        "tests/swarm/test_switched_off.py::test_who_is_alone_saves_frees_its_compute_and_goes_on_from_the_disk",
        "tests/swarm/test_switched_off.py::test_who_leaves_last_saves_first_and_its_next_life_goes_on_from_there",
        "tests/swarm/test_watching.py::test_who_hands_over_when_the_run_ends_keeps_the_last_copy",
    ),
    "networks that differ in one thing from one that is played": (
        "tests/swarm/test_lines.py::test_a_newcomer_finds_a_swarm_whose_lines_are_full_and_gets_what_its_own_can_carry",
        "tests/swarm/test_lines.py::test_a_step_over_thin_lines",
        "tests/swarm/test_moving.py::test_a_volunteer_with_ipv6_alone_moves_to_another_network",
        "tests/swarm/test_moving.py::test_a_volunteer_that_was_without_network_for_a_moment_goes_on",
        "tests/swarm/test_moving.py::test_a_volunteer_whose_router_gets_another_address_goes_on[port-restricted]",
        "tests/swarm/test_moving.py::test_a_run_over_both_kinds_of_ip",
        "tests/swarm/test_relay.py::test_who_relays_is_credited_with_what_goes_through_it",
        "tests/swarm/test_relay.py::test_who_watches_sees_a_run_that_nobody_can_dial",
        "tests/swarm/test_relay.py::test_when_no_member_can_be_reached_the_meeting_point_tells_on_what_they_signed",
        "tests/swarm/test_routers.py::test_a_router_that_keeps_a_port_open_is_asked_to_unless_its_owner_says_no"
        "[nat-pmp]",
        "tests/swarm/test_routers.py::test_where_routers_cannot_be_opened_the_run_trains_through_the_meeting_point",
        "tests/swarm/test_routers.py::test_a_relay_that_is_killed_in_mid_step_costs_a_redial",
        "tests/swarm/test_routers.py::test_some_pairs_of_the_matrix",
        "tests/swarm/test_slow_lines.py::test_slow_is_not_dead",
        "tests/swarm/test_watching.py::test_a_relayed_peer_is_seen_as_such",
    ),
    "what an owner does or sees, in another way or at another moment": (
        "tests/swarm/test_dashboard.py::test_who_comes_late_sees_it_all_and_the_loss_of_a_stage_as_it_happens",
        "tests/swarm/test_demo.py::test_a_demo_that_is_ended_leaves_no_process[15]",
        "tests/swarm/test_demo.py::test_a_demo_that_is_ended_leaves_no_process[9]",
        "tests/swarm/test_first_weights_cli.py::test_ctrl_c_while_layers_come_ends_soon_and_a_next_join_goes_on",
        "tests/swarm/test_full_disk.py::test_a_volunteer_on_a_full_disk_trains_pauses_resumes_and_leaves",
        "tests/swarm/test_limits.py::test_a_swarm_trains_within_narrow_limits_and_loses_nobody",
        "tests/swarm/test_limits.py::test_who_has_everything_to_do_keeps_to_one_core_and_its_memory",
        "tests/swarm/test_owner.py::test_who_is_alone_in_a_run_stands_still_and_loses_nothing",
        "tests/swarm/test_owner.py::test_when_both_pause_at_once_one_stays_with_all_of_it",
        "tests/swarm/test_owner.py::test_a_pause_that_is_over_ends_by_itself_and_hours_are_kept",
        "tests/swarm/test_owner.py::test_a_home_that_was_paused_starts_paused_and_ends_when_it_is_told",
        "tests/swarm/test_owner.py::test_a_program_on_the_gpu_comes_first",
        "tests/swarm/test_owner.py::test_an_owner_who_presses_again_and_again",
        "tests/swarm/test_owner.py::test_a_terminal_that_is_really_closed",
        "tests/swarm/test_owner.py::test_the_live_line_of_a_terminal[('--json',)]",
        "tests/swarm/test_owner.py::test_the_live_line_of_a_terminal[('--quiet',)]",
        "tests/swarm/test_owner.py::test_the_live_line_of_a_terminal[('--log-format', 'json')]",
        "tests/swarm/test_owner.py::test_killed_while_paused_it_is_still_paused",
    ),
}
"""Why → tests, or single cases of them."""


def at_night() -> bool:
    """All of it is played (FTNODE_NIGHT), which takes hours."""
    return bool(os.environ.get("FTNODE_NIGHT"))


def seeds(count: int) -> range:
    """The first ones for every change; as many as `count` in the night."""
    return range(1, 1 + (count if at_night() else count // NIGHT_ONLY))


def left() -> frozenset[str]:
    """Names of all that is left to the night, but for seeds."""
    return frozenset(name for names in NIGHT.values() for name in names)


def mark(items: list[pytest.Item]) -> None:
    """Those that are left to the night."""
    played, later = Counter[tuple[str, ...]](), left()
    for item in items:
        name = item.path.relative_to(ROOT).as_posix() + "::" + item.name
        enough = name.startswith(WORLD) and _played_enough(item, played)  # also where it is left itself
        if enough or name in later or name.partition("[")[0] in later:
            item.add_marker(pytest.mark.night)


def _played_enough(item: pytest.Item, played: Counter[tuple[str, ...]]) -> bool:
    """Another seed of a test, all else being the same."""
    params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    if "seed" not in params:
        return False
    del params["seed"]
    same = str(item.path), item.name.partition("[")[0], *(f"{key}={params[key]}" for key in sorted(params))
    played[same] += 1
    return played[same] % KEPT_PLAYED != 1 if item.name.startswith(KEPT) else played[same] > SEEDS_PLAYED
