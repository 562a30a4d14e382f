"""RingStrategy: the cases of all synchronous strategies, and its own."""

from pathlib import Path

import multi_worker_cases as cases
import numpy as np
import pytest
from case_jobs import Job, load

import launch
import tf_config
from tf_config.contract import EXIT_STALLED
from tfdist import RingStrategy
from tfdist.cluster.membership import Membership
from tfdist.errors import StartupTimeoutError
from tfdist.synchronous import ring

from ..support import jobs
from ..support.deadline import STARTUP_DEADLINE
from ..support.raising import raises
from .updates_in_run import UPDATES

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).with_name("ring_cases.py")
WORKERS = 3
# Each has exchanges of its own; test_multi_worker.py compares all cases.
COMPARED = [
    "uneven",
    "last_batch_of_one",
    "several_steps_in_one",
    "batch_norm",
    "accumulated",
    "rows_of_steps_in_one_call",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Run a case, and return what the chief found."""
    directory = tmp_path_factory.mktemp("ring")
    cluster = f"--num_workers={WORKERS}", "--program=coordinator"
    with Job(PROGRAM, directory, *cluster, tasks=1) as job:

        def of(name):
            [found] = job[name]
            return checked(found)

        of.log = directory / "logs" / "chief.log"
        yield of


def checked(found):
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize("name", COMPARED)
def test_trains_like_one_process(found, name):
    assert found(name)["replicas"] == WORKERS
    assert found(name)["copies_equal"]
    alone = cases.CASES[name](cases.Alone())
    for key in set(alone) - {"hash"}:
        np.testing.assert_allclose(
            found(name)[key], alone[key], rtol=2e-4, atol=2e-5, err_msg=key
        )


def test_a_reduction_within_a_replica_is_not_laid_to_xla(found):
    found("batch_norm")
    assert "Under XLA context" not in found.log.read_text()


def test_a_ring_runs_on_each_worker_in_each_step(found):
    per_fit = found("rings_per_step")["counts"]
    assert per_fit.shape == (2, WORKERS)
    # 4 steps; one exchange of the gradients at least in each.
    assert (per_fit >= 4).all()
    assert (per_fit == per_fit[0, 0]).all()


@pytest.mark.in_gate
def test_tensors_go_from_each_worker_to_the_next_one_only(found):
    devices = found("route")["devices"]
    hops = {(a, b) for a, b in found("route")["hops"] if a in devices and b in devices}
    after = devices[1:] + devices[:1]
    assert hops == set(zip(devices, after, strict=True))


def test_workers_drop_different_units_and_end_the_same(found):
    assert found("dropout")["masks_differ"]
    assert found("dropout")["copies_equal"]


def test_copies_are_equal_after_a_step_that_failed_on_one_worker(found):
    assert "9 is not in" in found("a_step_fails_on_one_worker")["message"]
    assert found("a_step_fails_on_one_worker")["copies_equal"]


def test_a_step_that_exchanges_within_a_loop_is_refused(found):
    message = found("steps_in_a_loop")["message"]
    assert message.startswith("NestedFunctionError: RingStrategy was to add up"), (
        message
    )


@pytest.mark.parametrize("update", UPDATES)
def test_run_takes_a_traced_function(found, update):
    result, expected = found("functions")[update]
    assert result == expected


def test_saved_models_load_without_the_strategy(found):
    assert found("saving")["same"]
    assert found("saving")["files"] == [
        "archive",
        "export",
        "model.keras",
        "model.weights.h5",
    ]


def lose_worker_1(tmp_path, case):
    """Return how the chief ended, and the address of the worker."""
    log_dir = str(tmp_path / "logs")
    with launch.servers(
        0, WORKERS, log_dir=log_dir, startup_timeout=STARTUP_DEADLINE
    ) as servers:
        done = jobs.run(
            *(PROGRAM, tmp_path, case),
            status=None,
            TF_CONFIG=servers.tf_config.to_json(),
            PID_OF_WORKER_1=str(servers.pids["worker:1"]),
        )
    return done, servers.tf_config.cluster.worker[1]


def test_a_worker_that_stops_is_named_though_nothing_can_be_interrupted(tmp_path):
    done, address = lose_worker_1(tmp_path, "a_worker_stops")
    assert done.returncode == EXIT_STALLED, done.stderr[-4000:]
    assert f"PeerLostError: worker:1 at {address} does not answer" in done.stderr


def test_a_worker_that_dies_is_named(tmp_path):
    done, address = lose_worker_1(tmp_path, "a_worker_dies")
    assert done.returncode == 0, done.stderr[-4000:]
    found = checked(load(tmp_path / "a_worker_dies-0.pkl"))
    assert found["message"].startswith(f"PeerLostError: worker:1 at {address} ended")


CHIEF = tf_config.Task("chief", 0)


@pytest.mark.parametrize(
    ("cluster", "task", "words"),
    [
        ({"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}, CHIEF, "and no ps"),
        ({"chief": ["a:1"]}, CHIEF, "needs a chief and workers.*the jobs chief"),
        (
            {"chief": ["a:1"], "worker": ["c:1"]},
            tf_config.Task("worker", 0),
            "on the chief alone; this task is worker:0",
        ),
    ],
)
def test_another_cluster_is_refused(cluster, task, words):
    config = tf_config.TFConfig(tf_config.Cluster.from_dict(cluster), task)
    words += (
        ".* Type: tfdist local --num_ps=0 --num_workers=[12] --program=coordinator "
    )
    with pytest.raises(tf_config.ClusterError, match=words):
        RingStrategy(config)


def test_no_cluster_is_refused(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with raises(tf_config.ClusterError, "TF_CONFIG", "=coordinator"):
        RingStrategy()
    with raises(TypeError, "received 5"):
        RingStrategy(5)
    with raises(TypeError, "RingAllReduce"):
        RingStrategy(cross_device_ops="ring")


def test_a_worker_that_never_comes_is_named(monkeypatch):
    # This process may be the chief of the cluster of other tests.
    monkeypatch.setattr(ring, "MEMBERSHIP", Membership())
    cluster = tf_config.Cluster(chief=("127.0.0.1:1",), worker=("127.0.0.1:2",))
    with raises(StartupTimeoutError, "0.5 s", "worker:0 at 127.0.0.1:2"):
        RingStrategy(tf_config.TFConfig(cluster, CHIEF), startup_timeout=0.5)
