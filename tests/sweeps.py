"""Which cases of a long sweep the parts run; `make sweeps` runs all of them.

Each case that is left out differs from one that is kept in its data alone, not in the code
that it goes through, or goes through code that another test sees, or takes
minutes on a busy machine.
"""

import pytest

IN_PART = {
    # Whole programs and benchmarks, whose parts other tests see.
    "test_benchmarks.py::test_benchmark_measures_steps_that_ran_on_the_workers": (),
    "test_elastic_cluster.py::test_a_stopped_worker_delays_nobody_who_joins_once_it_goes_on": (),
    "test_elastic_cluster.py::test_workers_that_come_later_join_a_running_fit_and_every_step_runs_once": (  # noqa: E501
        "arrays",
    ),
    "test_examples.py::test_mirrored_says_that_cpu_devices_stand_in": (),
    "test_federated_mnist.py::test_the_command_of_the_page_learns": (),
    "test_peers_benchmark.py::test_contenders_that_need_no_environment_take_turns": (),
    "test_recommender_cluster.py::test_the_error_is_that_of_a_single_process": (),
    "test_all_reduce_benchmark.py::test_nothing_is_left_when_it_is_interrupted": (
        "15",
    ),
    "test_embeddings.py::test_keras_file_without_tfdist": ("mod",),
    "test_kubernetes_nodes.py::test_nothing_is_left": ("cancel", "SIGKILL"),
    "test_kubernetes_nodes.py::test_what_kubernetes_does_not_have": (
        "flags0-ImagePullBackOff: Back-off pulling image",
        "flags3-exceeded quota: small",
    ),
    "test_linear_predictor.py::test_on_a_cluster": ("synchronous", "asynchronous"),
    "test_no_lost_updates.py::test_counts": ("each-step-0", "ten-steps-1"),
    "test_no_lost_updates.py::test_dense_weights": ("each-step-0", "ten-steps-1"),
    "test_no_lost_updates.py::test_rows_of_an_embedding": (
        "each-step-0",
        "ten-steps-1",
    ),
    "test_no_lost_updates.py::test_state_of_layers": ("each-step-0", "ten-steps-1"),
    "test_partitioning.py::test_export": ("True-embedding_model", "False-dense_model"),
    "test_ray_nodes.py::test_a_job_that_waits_for_ray_can_be_ended": ("SIGKILL",),
    "test_ray_nodes.py::test_a_node_that_dies_moves_its_tasks": (
        "flags0-Ray has given it another, 127.0.0.",
    ),
    "test_ray_nodes.py::test_nothing_is_left": ("cancel", "SIGKILL of both"),
    "test_ray_nodes.py::test_what_the_cluster_does_not_have": (
        "flags3-a task needs 5 CPU, and no node has more than 4",
    ),
    "test_rounds_faults.py::test_every_task_is_lost_once": ("synchronous:1",),
    "test_rounds_faults.py::test_rounds_go_on_without_workers": ("SIGKILL-2",),
    "test_slurm_nodes.py::test_a_job_goes_on_at_its_step": ("preemption", "time limit"),
    "test_slurm_nodes.py::test_nothing_is_left": (
        "cancel",
        "SIGKILL of the batch script",
    ),
    "test_slurm_nodes.py::test_what_slurm_does_not_have": (
        "flags1-invalid partition specified: nowhere",
    ),
    "test_ssh_hosts.py::test_nothing_is_left": ("SIGTERM", "SIGKILL of both"),
}
"""The cases that are kept, by their ids, of each test that is a sweep; () keeps none."""


def apply(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases that are left out as thorough.

    Raises:
        pytest.UsageError: If a case that is to be kept does not exist.
    """
    found: dict[str, set[str]] = {}
    for item in items:
        test, _, case = item.name.partition("[")
        name = f"{item.path.name}::{test}"
        if name in IN_PART:
            case = case.removesuffix("]")
            found.setdefault(name, set()).add(case)
            if case not in IN_PART[name]:
                item.add_marker("thorough")
    if any("::" in each for each in config.args):
        return  # Some cases were chosen.
    for name, cases in found.items():
        if unknown := set(IN_PART[name]) - cases:
            raise pytest.UsageError(f"tests/sweeps.py: {name} has no case {unknown}")
