"""`launch.ray.Executor` on a real Ray of two nodes on this machine."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import tf_config
from launch.engines.engine import EngineError
from launch.ray import Executor, WorkerError, WorkerLostError

from ..launch_programs.launcher import DEADLINE, ROOT, wait_for
from ..support import documents
from .ray_nodes import actors, needs_ray, ray_nodes

pytestmark = [*needs_ray, pytest.mark.cluster]

NODES = ("127.0.0.2", "127.0.0.3")
HOUR = 3600.0  # seconds


@pytest.fixture(scope="module")
def nodes():
    from ray import cloudpickle

    with ray_nodes(NODES) as nodes:
        # The workers do not have the tests.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield nodes


@pytest.fixture
def executor(nodes):
    options = {"env": {"COLOUR": "blue"}, "timeout": 60, "secure": "private"}
    with Executor(num_workers=2, **options) as executor:
        executor.start()
        yield executor
    wait_for(nodes.is_empty, "end of the workers")


def rank():
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


class Counter:
    def __init__(self, start, step=1):
        self.value = start + 10 * rank()
        self.step = step

    def count(self):
        self.value += self.step
        return self.value


def test_a_function_runs_on_every_worker(executor):
    assert executor.run(rank) == [0, 1]
    assert executor.run(lambda a, b=0: a * b + rank(), [3], {"b": 2}) == [6, 7]
    texts = executor.run(lambda: os.environ["TF_CONFIG"])
    configs = [tf_config.TFConfig.from_json(text) for text in texts]
    assert [str(config.task) for config in configs] == ["worker:0", "worker:1"]
    assert configs[0].cluster == configs[1].cluster
    assert configs[0].cluster.as_dict().keys() == {"worker"}
    assert executor.run(lambda: os.environ["COLOUR"]) == ["blue", "blue"]
    # One process per worker, for as long as the executor lives.
    assert executor.run(os.getpid) == executor.run(os.getpid)


def test_an_object_stays_on_every_worker(nodes):
    with Executor(num_workers=2) as executor:
        with pytest.warns(
            UserWarning, match=r"anyone who can reach 127\.0\.0\.\d, 127"
        ):
            executor.start(Counter, [5], {"step": 2})
        assert executor.execute(lambda counter: counter.count()) == [7, 17]
        assert executor.execute(lambda counter: counter.count()) == [9, 19]
        with pytest.raises(RuntimeError, match=r"running: call shutdown\(\) first"):
            executor.start()
    wait_for(nodes.is_empty, "end of the workers")
    with pytest.raises(RuntimeError, match=r"not running: call start\(\) first"):
        executor.run(rank)


def divide(by):
    if rank() == 1:
        return 1 / by
    return rank()


def test_an_error_has_the_stack_of_the_user(executor):
    with pytest.raises(WorkerError) as raised:
        executor.run(divide, [0])
    assert raised.value.rank == 1
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    text = str(raised.value)
    assert "worker 1 on 127.0.0." in text
    assert "in divide\n    return 1 / by" in text
    assert "ray_rank_process.py" not in text
    # All workers have answered, so they can go on.
    assert executor.run(divide, [2]) == [0, 0.5]
    with pytest.raises(WorkerError, match="SystemExit: 3"):
        executor.run(lambda: sys.exit(3))


def test_an_error_on_one_worker_ends_those_that_wait_for_it(executor):
    def wait():
        if rank() == 0:
            raise KeyError("no data")
        time.sleep(HOUR)

    with pytest.raises(WorkerError, match=r"KeyError: 'no data'(.|\n)*were ended"):
        executor.run(wait)
    executor.start()
    assert executor.run(rank) == [0, 1]


def test_a_lost_worker_ends_the_call(executor):
    def die():
        if rank() == 1:
            os.kill(os.getpid(), 9)
        time.sleep(HOUR)

    with pytest.raises(WorkerLostError, match="worker 1 on .* was lost") as raised:
        executor.run(die)
    assert raised.value.rank == 1


def test_an_object_that_cannot_be_made(nodes):
    executor = Executor(num_workers=2, secure="private")
    with pytest.raises(WorkerError, match="TypeError"):
        executor.start(Counter)
    wait_for(nodes.is_empty, "end of the workers")


def test_what_the_cluster_does_not_have(nodes):
    message = r"within 2 s \(timeout\): it needs 9 CPU, and the cluster has 8\."
    with pytest.raises(EngineError, match=message):
        Executor(num_workers=9, timeout=2).start()
    assert nodes.is_empty()


def fit():
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    data = np.random.default_rng(2).normal(size=(64, 4)).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    start = [weight.tolist() for weight in model.get_weights()]
    dataset = tf.data.Dataset.from_tensor_slices((data, data[:, :1])).batch(16)
    model.fit(dataset, epochs=2, verbose=0)
    end = [weight.tolist() for weight in model.get_weights()]
    return strategy.num_replicas_in_sync, start, end


def test_keras_fit_on_workers_that_agree(executor):
    (replicas, start, end), other = executor.run(fit)
    assert replicas == 2
    assert start != end
    assert other == (replicas, start, end)


def test_the_program_of_the_docs(nodes, tmp_path):
    (block,) = (
        each
        for each in documents.blocks("python")
        if each.page.name == "ray.md" and "launch.ray" in each.code
    )
    x = np.random.default_rng(1).normal(size=(64, 4))
    np.savez(tmp_path / "train.npz", x=x, y=x[:, :1])
    code = block.code.replace("/data", str(tmp_path))
    found = {"__name__": "__main__"}  # Or else the workers would import the function.
    with pytest.warns(UserWarning, match="are open"):
        exec(compile(code, "ray.md", "exec"), found)
    one, other = found["losses"]
    assert one == other
    assert one[-1] < one[0]


PROGRAM = """
import sys, time
from launch.ray import Executor
executor = Executor(2, address=sys.argv[1], runtime_env={"working_dir": "."})
executor.start()
def word():
    import beside
    return beside.WORD
print(executor.run(word), flush=True)
executor.run(time.sleep, [3600])
"""


def test_a_program_that_is_killed_leaves_no_worker(nodes, tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'shipped'")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, nodes.address],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        shown = process.stdout.readline()
        assert shown == "['shipped', 'shipped']\n", process.communicate()
        assert len(actors()) == 2
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE)
    wait_for(nodes.is_empty, "end of the workers")
    assert not psutil.pid_exists(process.pid)
