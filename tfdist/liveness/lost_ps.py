"""Replaces TensorFlow's error of a failed step with one that names the lost ps."""

from collections.abc import Mapping

import tensorflow as tf

import tf_config
from tfdist.cluster.health import problems
from tfdist.liveness.peers import PeerLostError

# The step failed, so a ps that is alive has this long to answer.
_PROBE_SECONDS = 2.0
_OF_A_LOST_TASK = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


def error_of_lost_ps(
    error: BaseException, servers: Mapping[tf_config.Task, str]
) -> PeerLostError | None:
    """Returns an error that names the lost ps, or None if every ps answers."""
    if not isinstance(error, _OF_A_LOST_TASK):
        return None
    every_ps = {task: at for task, at in servers.items() if task.job == "ps"}
    lost = problems(every_ps, _PROBE_SECONDS)
    if not lost:
        return None
    names = ", ".join(f"{task} at {servers[task]} {lost[task]}" for task in lost)
    return PeerLostError(
        f"{names}. The variables that it held are gone. Start the ps and this program "
        "again (python -m launch.local does so); with a checkpoint_dir, fit resumes "
        "from its latest checkpoint"
    )
