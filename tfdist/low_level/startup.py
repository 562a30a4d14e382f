"""Waits for the rest of the cluster before the first step, with a deadline."""

import time

import tensorflow as tf

import tf_config
from tfdist.cluster.startup import StartupTimeoutError, wait_for
from tfdist.low_level.ending import addresses, trainers

STARTUP_SECONDS = 300.0
_LOOK_SECONDS = 0.2


def wait_until_ready(
    server: tf.distribute.Server, timeout: float = STARTUP_SECONDS
) -> None:
    """Waits for the ps, and until the chief has initialized the variables.

    Call it when the graph is complete, before the `MonitoredTrainingSession`. The
    session waits for a ps without a deadline, and checks for the variables only every
    30 seconds: the chief may have finished training by then.

    Args:
        server: The server of this task, which is the chief (the job `chief` or
            `master`; without either, `worker:0`) or another task that trains.
        timeout: How long to wait, in seconds.

    Raises:
        StartupTimeoutError: If a ps or the chief is not ready in time. The message
            names it.
    """
    deadline = time.monotonic() + timeout
    definition = server.server_def
    ps = addresses(definition).get("ps", [])
    wait_for(
        {tf_config.Task("ps", index): address for index, address in enumerate(ps)},
        timeout,
        "Start each of them, or check the addresses",
    )
    chief = trainers(definition)[0]
    if chief == f"{definition.job_name}:{definition.task_index}":
        return
    # The variables are passed, since the default has the local ones too, which each
    # task initializes itself.
    variables = tf.compat.v1.global_variables()
    uninitialized = tf.compat.v1.report_uninitialized_variables(variables)
    config = session_config(server)
    with tf.compat.v1.Session(server.target, config=config) as session:
        while len(names := session.run(uninitialized)):
            if time.monotonic() > deadline:
                raise StartupTimeoutError(
                    f"{chief} has not initialized {names[0].decode()} and others "
                    f"({len(names)}) within {timeout:g} s: start it, and make sure that "
                    "every task creates the same variables"
                )
            time.sleep(_LOOK_SECONDS)


def session_config(server: tf.distribute.Server) -> tf.compat.v1.ConfigProto:
    """Returns the options of a session that needs no other tasks than the ps.

    Without these options, a session waits for every worker, even for a killed one.
    """
    definition = server.server_def
    own = f"/job:{definition.job_name}/task:{definition.task_index}"
    return tf.compat.v1.ConfigProto(device_filters=["/job:ps", own])
