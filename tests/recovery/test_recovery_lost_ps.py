"""The error for a ps that is gone."""

import pytest
import tensorflow as tf

import tf_config
from tfdist.cluster.liveness.peers import error_of_lost_ps

from ..launch_programs.fake_server import FakeServer

UNAVAILABLE = tf.errors.UnavailableError(None, None, "recvmsg:Connection reset by peer")


@pytest.fixture
def servers():
    gone, alive = FakeServer(), FakeServer()
    gone.close()
    yield {
        tf_config.Task("ps", 0): alive.address,
        tf_config.Task("ps", 1): gone.address,
        tf_config.Task("worker", 0): gone.address,
    }
    alive.close()


def test_a_ps_that_is_gone_is_named(servers):
    error = error_of_lost_ps(UNAVAILABLE, servers)
    gone = servers[tf_config.Task("ps", 1)]
    assert str(error).startswith(f"ps:1 at {gone} cannot be reached")
    assert "checkpoint_dir" in str(error)


def test_other_errors_stay_what_they_are(servers):
    alive = {task: at for task, at in servers.items() if task.index == 0}
    assert error_of_lost_ps(UNAVAILABLE, alive) is None
    assert error_of_lost_ps(KeyboardInterrupt(), servers) is None
    assert (
        error_of_lost_ps(tf.errors.InvalidArgumentError(None, None, ""), servers)
        is None
    )
