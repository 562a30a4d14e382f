"""Which tests are the gate; the other parts are the folders of tests.

The gate is what `make test` and CI run: minutes, in any order, under any load. It has every
test that needs neither a cluster, nor Python programs, nor an engine, and of the others those
of `OF_CLUSTERS`: few, and each proves a capability on real processes. `make test-all` runs
all parts, and `make test-all PART=recovery` one of them.
"""

from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

GATE = "gate"

TESTS = Path(__file__).parent
PARTS = sorted({path.parent.name for path in TESTS.glob("*/test_*.py")})
"""The folders of tests: most are named for the package whose behaviour they prove."""

NEEDS_MORE = {"cluster", "slow", "namespaces", "engine", "thorough"}
"""The markers of tests that the gate has only if `OF_CLUSTERS` names them."""

BY_NAME_ALONE = NEEDS_MORE - {"cluster", "slow"}
"""The markers of tests that are not meant by "*"."""

# What takes seconds, and says what a shorter test of the gate says or few changes can break:
# strings through every shell, pictures, figures of a page, data sets, sweeps of a simulation.
LEFT_OUT = (
    "all_reduce/test_all_reduce_cost::test_a_plot_keeps_what_it_shows",
    "recovery/test_chaos::test_a_job_that_is_late_is_ended_and_leaves_nothing",
    "checkpoint/test_checkpoint_plain::test_values_come_back_as_they_were",
    "consistency/test_consistency_policies::test_nobody_waits_without_a_bound",
    "embedding/test_embedding_errors::test_ids_out_of_range",
    "embedding/test_embedding_errors::test_weights_of_other_ids",
    "embedding/test_embedding_lookup::test_a_counter_adds_up_the_steps",
    "embedding/test_embedding_lookup::test_bfloat16_rows_are_summed_in_float32",
    "embedding/test_embedding_lookup::test_each_shard_takes_the_route_that_moves_less",
    "embedding/test_growing_layers::test_it_trains_as_a_table_that_has_all_rows",
    "embedding/test_growing_layers::test_more_bytes_than_there_are_are_not_reserved",
    "embedding/test_growing_layers::test_more_bytes_than_a_process_has_are_refused",
    "embedding/test_growing_layers::test_rows_that_nobody_has_yet_do_not_reach_an_optimizer",
    "embedding/test_growing_saving::test_a_full_table_is_restored_again_and_again",
    "embedding/test_growing_saving::test_a_model_that_is_restored_goes_on_as_the_one_that_was_saved",
    "embedding/test_growing_saving::test_what_waits_is_restored",
    "examples/test_examples::test_a_look_at_one_batch_loses_no_data",
    "examples/test_examples::test_too_many_train_examples",
    "federated/test_federated_server::test_the_programs_of_the_page",
    "federated/test_federated_simulation::test_a_function_or_a_dataset_of_a_client_gives_what_arrays_give",
    "federated/test_federated_simulation::test_it_learns_and_logs_what_happened",
    "federated/test_federated_simulation::test_the_proximal_term_pulls_towards_the_model_of_the_round",
    "federated/test_federated_simulation::test_the_same_seed_gives_the_same_run",
    "federated/test_federated_splits::test_a_picture_of_who_has_what",
    "variables/test_fused_kernels::test_it_does_in_float64",
    "variables/test_fused_kernels::test_whatever_its_options",
    "launch/test_kubernetes::test_a_server_that_never_answers_is_not_waited_for",
    "launch/test_kubernetes::test_json_carries_everything_through_kubernetes",
    "launch/test_launch_engines::test_whatever_the_flags_say",
    "launch/test_launch_fuzz::*",
    "launch/test_launch_local::test_ps_that_run_the_script_may_end_by_themselves_and_need_not",
    "launch/test_launch_local::test_server_that_never_listens_is_named_with_its_address",
    "local_update/test_local_update_fragments::test_the_others_become_equal_again_after_a_loss",
    "local_update/test_local_update_fragments::test_gossip_that_overlaps_keeps_the_mean_and_comes_near_it",
    "local_update/test_local_update_compression::test_models_become_equal_again_after_a_loss",
    "local_update/test_mixing::test_the_command_draws_the_graphs",
    "examples/test_mnist_5k::test_a_failed_preparation_leaves_nothing_and_is_reported",
    "examples/test_mnist_5k::test_loads_without_a_network",
    "examples/test_mnist_5k::test_the_second_to_finish_uses_the_data_of_the_first",
    "repository/test_own_process::test_only_selected_tests_run",
    "repository/test_own_process::test_outcome",
    "placement/test_placement_balance::test_the_measured_rows_are_those_of_today",
    "placement/test_plan_sizes::test_a_model_that_is_not_built_is_built_by_a_batch",
    "placement/test_plan_sizes::test_an_optimizer_for_a_loop_of_your_own",
    "placement/test_plan_sizes::test_lookups_are_of_the_variables_that_match",
    "placement/test_plan_sizes::test_planning_leaves_no_trace",
    "placement/test_plan_sizes::test_sizes_of_a_model_of_keras_applications",
    "placement/test_plan_sizes::test_tables_are_split_as_their_layers_can",
    "placement/test_plan_sizes::test_what_is_built_to_be_thrown_away_is_not_planned",
    "recovery/test_presence::test_the_watchdog_looks_at_nobody_who_is_not_waited_for",
    "repository/test_private_api::test_every_declared_member_is_used",
    "launch/test_ray::test_what_is_rendered_carries_everything_through_a_shell",
    "embedding/test_recommender::test_batches_are_those_of_their_seed",
    "embedding/test_recommender::test_there_is_more_to_learn_than_noise",
    "repository/test_scheduling::test_a_crash_fails_one_test_and_all_others_run",
    "simulation/test_simulated_training::test_a_bound_of_the_workers_is_used_up",
    "simulation/test_simulated_training::test_backup_workers_drop_the_late",
    "simulation/test_simulated_training::test_the_curve_flattens_at_its_bound",
    "simulation/test_simulated_training::test_the_staleness_is_bounded",
    "launch/test_slurm::test_a_script_carries_everything_through_its_shell",
    "launch/test_ssh::test_a_rendered_line_carries_everything_through_two_shells",
)

# Of a room of tfdist.research, one: it promises less, and nothing outside imports it.
OF_CLUSTERS: dict[str, Collection[str]] = {
    "differential/test_fixed": ("*",),
    "features/test_callbacks": (
        "test_a_rate_set_between_epochs_is_that_of_the_epoch",
        "test_backup_and_restore",
        "test_model_checkpoint_each_few_steps",
        "test_progress_bar",
        "test_save_in_a_callback[save_weights]",
    ),
    "features/test_consistency": (
        "test_no_step_is_staler_than_the_bound[mlp-1]",
        "test_reads_wait_for_the_start_and_writes_for_their_turn[2-cnn]",
        "test_a_policy_of_a_user_decides_on_the_chief[of0]",
        "test_a_policy_of_a_user_decides_on_the_chief[of1]",
    ),
    "features/test_data": (
        "test_dataset_from_generator",
        "test_dictionary_of_features",
        "test_each_epoch_is_shuffled_anew",
        "test_endless_generator",
        "test_finite_dataset",
        "test_numpy",
        "test_py_dataset[2]",
        "test_sparse_input",
    ),
    "features/test_embeddings": (
        "test_bags_train[True-ragged]",
        "test_keras_embedding_sums_by_row[Adam-looked_up_twice]",
    ),
    "features/test_files_of_the_chief": (
        "test_the_chief_reads_the_others[of_the_chief_alone]",
    ),
    "features/test_growing": (
        "test_a_table_is_restored_with_its_slots",
        "test_an_id_gets_one_row_and_no_gradient_is_lost[10]",
    ),
    "features/test_layers": (
        "test_batch_normalization_learns_its_statistics",
        "test_layer[Conv2D]",
        "test_layer[Dropout]",
        "test_layer_counts_every_step",
        "test_only_rows_of_an_embedding_travel[sgd]",
        "test_sequences_of_unknown_batches",
        "test_string_lookup",
    ),
    "features/test_leases": (
        "test_arrays[map]",
        "test_no_example_crosses_the_chief",
    ),
    "features/test_ordinary_files": (
        "test_batches_are_those_of_the_chief[interleaved-epochs]",
    ),
    "features/test_metrics": (
        "test_binary[AUC]",
        "test_counts_are_exact_in_fit",
        "test_several",
    ),
    "features/test_models": (
        "test_losses_of_the_model",
        "test_shared_layers",
        "test_subclassed[0.1]",
        "test_two_models",
    ),
    "features/test_no_lost_updates": (
        "test_counts[ten-steps-1]",
        "test_dense_weights[each-step-0]",
        "test_rows_of_an_embedding[ten-steps-1]",
        "test_state_of_layers[each-step-0]",
    ),
    "features/test_optimizers": (
        "test_averages_become_the_weights",
        "test_learning_rate_follows_the_steps",
        "test_multi_optimizer",
        "test_numbers_of_an_optimizer",
        "test_optimizer[Adam]",
        "test_optimizer[clipnorm]",
    ),
    "features/test_partitioning": (
        "test_large_weights_are_split_where_links_are_slow",
        "test_sum_of_gradients_is_exact",
        "test_tapes_around_what_reads[Twice-Compiled]",
        "test_rows[Adam]",
        "test_reshard_on_restore[whole-thirds]",
    ),
    "features/test_placement": ("test_slots_live_beside_weights",),
    "features/test_refusals": (
        "test_error_on_a_worker_is_raised[fit]",
        "test_error_of_a_batch_that_was_not_waited_for_is_not_kept",
        "test_metric_that_is_no_sum",
        "test_mixed_float16",
        "test_run_eagerly",
        "test_variable_outside",
    ),
    "features/test_resuming": (
        "test_resume_within_an_epoch",
        "test_data_position[dataset]",
        "test_corrupt_checkpoint[truncated]",
        "test_other_shards",
    ),
    "features/test_saving": (
        "test_load_model_in_the_scope",
        "test_plain_weights_are_loaded",
        "test_restore_checkpoint_in_the_scope",
    ),
    "features/test_step_graph": (
        "test_a_pair_of_tasks_has_one_message_each_way",
        "test_counts_are_exact_between_exchanges[adam-3]",
        "test_messages_per_step[rows-sgd]",
        "test_one_worker_computes_what_one_process_does[1]",
        "test_one_worker_computes_what_one_process_does[5000]",
        "test_ten_steps_take_ten_times_the_messages_of_one",
        "test_the_value_of_a_split_weight_goes_to_the_worker_only",
        "test_the_rest_of_a_dataset_takes_no_trace_of_its_own",
    ),
    "features/test_steps": (
        "test_extra_logs[3]",
        "test_gan[True]",
        "test_random_numbers_without_a_seed",
        "test_test_step",
        "test_train_step[compute_loss-3]",
        "test_train_step[own-loss-1]",
    ),
    "features/test_tables": (
        "test_lookup_in_an_endless_dataset[int-True]",
        "test_adapted_outside_in_the_first_call[predict]",
        "test_own_table",
    ),
    "features/test_training": (
        "test_both_workers_train",
        "test_evaluate",
        "test_exception_leaves_no_step_under_way",
        "test_fit",
        "test_one_function_is_sent_for_each_number_of_steps",
        "test_predict_keeps_the_order[3]",
        "test_sample_weight",
        "test_steps_per_execution[3]",
        "test_the_loop_of_the_guide",
        "test_train_on_batch",
        "test_validation_data",
    ),
    "features/test_when_changed": (
        "test_a_threshold_of_zero_is_todays_step",
        "test_no_change_of_a_worker_is_lost",
        "test_no_change_of_a_row_is_lost",
    ),
    "features/test_wire_dtype": ("test_half_of_the_bytes[2-SGD]",),
    "estimator/test_estimator_cluster": (
        "test_every_process_ends_by_itself_with_status_0",
        "test_steps_run_on_chief_and_workers_and_reach_max_steps",
        "test_variables_are_where_the_report_says",
    ),
    "fork_server/test_fork_server": (
        "test_it_looks_like_a_fresh_interpreter",
        "test_seeds_differ",
        "test_nothing_survives_the_launcher",
    ),
    "variables/test_fused_updates": (
        "test_a_step_has_one_operation_per_weight_and_equals_keras"
        "[in_shards-ResourceApplyAdam]",
        "test_no_update_of_two_workers_is_lost[ResourceApplyKerasMomentum]",
    ),
    "launch/test_launch_local": ("*",),
    "examples/test_mnist_cluster": ("test_five_processes_train_and_report",),
    "synchronous/test_multi_worker": (
        "test_trains_like_one_process[uneven]",
        "test_trains_like_one_process[rows_of_steps_in_one_call]",
        "test_fit_continues_at_its_step_as_if_nothing_had_happened[arrays]",
    ),
    "recovery/test_recovery_cluster": (
        "test_tasks_are_lost_and_training_ends_as_planned[killed]",
    ),
    "pipeline/test_pipeline": ("test_equals_one_process[chain-4-4-1f1b-adam-False]",),
    "synchronous/test_ring_strategy": (
        "test_tensors_go_from_each_worker_to_the_next_one_only",
    ),
    "consistency/test_rounds": ("test_optimizer[Adam]", "test_steps_in_one_message"),
    "model_parallel/test_split_pipeline": (
        "test_equals_the_plain_layers[words-split6-2-2-1f1b-sgd-False]",
    ),
    "launch/test_ssh": ("test_the_tasks_run_on_their_hosts",),
    "reader/test_whole_batch": (
        "test_matches_one_process[gradient_penalty-MultiWorkerMirroredStrategy]",
        "test_rejected_with_what_to_do[greatest_loss-MultiWorkerMirroredStrategy]",
    ),
}
"""Of each file, the tests or cases that the gate has though they need more; "*" is all."""


def is_in_gate(file: str, test: str, markers: Collection[str]) -> bool:
    """Whether the gate has a test.

    Args:
        file: Of the test, below `tests` and without its ending.
        test: Its name, with the case in brackets.
        markers: Its markers.
    """
    function = test.partition("[")[0]
    if any(fnmatchcase(f"{file}::{function}", each) for each in LEFT_OUT):
        return False
    if not NEEDS_MORE.intersection(markers):
        return True
    names = {test, function}
    if not BY_NAME_ALONE.intersection(markers):
        names.add("*")
    return bool(names.intersection(OF_CLUSTERS.get(file, ())))
