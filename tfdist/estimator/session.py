"""Sessions of workers that do not oversleep the start of the chief."""

from typing import Any

import tensorflow as tf

from tfdist.estimator import _tf

_RETRY_SECONDS = 1.0


def monitored_training_session(
    *, is_chief: bool, hooks: Any, scaffold: Any, **options: Any
) -> Any:
    """Makes the session of a task, as `tf.compat.v1.train.MonitoredTrainingSession`.

    A worker that finds the variables not initialized looks again after a second.
    TensorFlow's looks after 30, by which time a chief may have done all steps.
    """
    # Workers in step have a context, and initialize variables of their own.
    if is_chief or _tf.worker_context():
        return tf.compat.v1.train.MonitoredTrainingSession(
            is_chief=is_chief, hooks=hooks, scaffold=scaffold, **options
        )
    creator = _WorkerSessionCreator(
        scaffold=scaffold,
        master=options["master"],
        config=options["config"],
        max_wait_secs=options["max_wait_secs"],
    )
    return tf.compat.v1.train.MonitoredSession(session_creator=creator, hooks=hooks)


class _WorkerSessionCreator(tf.compat.v1.train.WorkerSessionCreator):
    def _get_session_manager(self) -> Any:
        manager = super()._get_session_manager()
        manager._recovery_wait_secs = _RETRY_SECONDS
        return manager
