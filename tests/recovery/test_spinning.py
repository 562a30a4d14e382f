"""Idle threads of the ps, the workers and the chief sleep, unless there is a GPU."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

import tf_config
from tfdist import server
from tfdist.cluster import spinning

OPTIONS = """
import tensorflow as tf
from tensorflow.python.eager import context
from tfdist.cluster import spinning

tf.config.threading.set_intra_op_parallelism_threads(3)
spinning.configure_this_process()
spinning.configure_this_process()
tf.config.threading.set_inter_op_parallelism_threads(5)
float(tf.add(1.0, 2.0))
options = context.context().config
print(
    options.experimental.disable_thread_spinning,
    options.intra_op_parallelism_threads,
    options.inter_op_parallelism_threads,
    options.device_count["CPU"],
)
"""


@pytest.fixture(params=[False, True], ids=["no_gpu", "gpu"])
def has_gpu(request, monkeypatch):
    gpus = [SimpleNamespace(name="/physical_device:GPU:0", device_type="GPU")]
    found = gpus if request.param else []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: found)
    return request.param


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_a_server_spins_only_beside_a_gpu(job, has_gpu, monkeypatch):
    given = []
    monkeypatch.setattr(
        tf.distribute, "Server", lambda *args, config, **rest: given.append(config)
    )
    server.start_server({job: ["127.0.0.1:1"]}, tf_config.Task(job, 0))
    [options] = given
    assert options.experimental.disable_thread_spinning is not has_gpu
    assert options.inter_op_parallelism_threads >= server.MIN_INTER_OP_THREADS


def test_a_process_with_a_gpu_keeps_the_default(has_gpu, monkeypatch):
    calls = []
    disable = "disable_thread_spinning"
    monkeypatch.setattr(spinning._tf, disable, lambda: calls.append(disable))
    spinning.configure_this_process()
    assert calls == ([] if has_gpu else [disable])


def test_other_options_of_the_process_stay(run_python):
    done = run_python(OPTIONS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "3", "5", "1"]


@pytest.mark.cluster
@pytest.mark.parameter_server
def test_the_chief_has_joined_with_threads_that_sleep(strategy):
    from tensorflow.python.eager import context

    joined = context.get_server_def().default_session_config
    assert joined.experimental.disable_thread_spinning
