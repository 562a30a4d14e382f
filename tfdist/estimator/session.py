"""The session of a task that trains."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.estimator.clusters import is_synchronous

_v1 = tf.compat.v1.train

_RETRY_SECONDS = 1.0
_DEFAULT_SAVE_STEPS = 1000


def monitored_training_session(
    *, is_chief: bool, hooks: Any, scaffold: Any, **options: Any
) -> Any:
    """Creates a task's session, like `tf.compat.v1.train.MonitoredTrainingSession`."""
    strategy = tf.distribute.get_strategy()
    if is_synchronous(strategy) and strategy.cluster_resolver.cluster_spec():
        return _synchronous_session(
            strategy, is_chief=is_chief, hooks=hooks, scaffold=scaffold, **options
        )
    if is_chief:
        return _v1.MonitoredTrainingSession(
            is_chief=is_chief, hooks=hooks, scaffold=scaffold, **options
        )
    creator = _WorkerSessionCreator(
        scaffold, options["master"], options["config"], options["max_wait_secs"]
    )
    return _v1.MonitoredSession(session_creator=creator, hooks=hooks)


@dataclass(eq=False)
class _WorkerSessionCreator(tf.compat.v1.train.SessionCreator):
    """Waits for the chief to initialize the variables.

    It checks every second. TensorFlow's own creator checks every 30 seconds, and the
    chief may have run all steps by then.
    """

    scaffold: Any
    master: str
    config: Any
    max_wait_secs: float

    def create_session(self) -> tf.compat.v1.Session:
        """Returns a session on initialized variables."""
        scaffold = self.scaffold.finalize()
        manager = _v1.SessionManager(
            local_init_op=scaffold.local_init_op,
            local_init_feed_dict=scaffold.local_init_feed_dict,
            ready_op=scaffold.ready_op,
            ready_for_local_init_op=scaffold.ready_for_local_init_op,
            graph=tf.compat.v1.get_default_graph(),
            recovery_wait_secs=_RETRY_SECONDS,
        )
        return manager.wait_for_session(
            self.master, config=self.config, max_wait_secs=self.max_wait_secs
        )


def _synchronous_session(
    strategy: tf.distribute.Strategy,
    *,
    is_chief: bool,
    hooks: Any,
    scaffold: Any,
    checkpoint_dir: str,
    config: tf.compat.v1.ConfigProto,
    **options: Any,
) -> Any:
    """Creates the session of a worker that has its own copy of every variable."""
    resolver = strategy.cluster_resolver
    task_type, task_id = resolver.task_type, resolver.task_id
    # Saving and summaries may contain collectives, which hang unless every worker runs
    # them. Workers other than the chief write to a directory that nobody reads.
    directory = (
        checkpoint_dir
        if is_chief
        else os.path.join(checkpoint_dir, f"tmp_{task_type}_{task_id}")
    )
    of_chief = options.get("chief_only_hooks", ()) if is_chief else ()
    all_hooks = [*hooks, *of_chief]
    all_hooks += _writing_hooks(directory, scaffold, options)
    creator = _v1.ChiefSessionCreator(
        scaffold,
        master=f"grpc://{resolver.cluster_spec().task_address(task_type, task_id)}",
        config=strategy.update_config_proto(config),
        checkpoint_dir=checkpoint_dir,
    )
    return _v1.MonitoredSession(session_creator=creator, hooks=all_hooks)


def _writing_hooks(
    directory: str, scaffold: Any, options: Mapping[str, Any]
) -> list[Any]:
    hooks = []
    if steps := options.get("log_step_count_steps"):
        hooks.append(_v1.StepCounterHook(steps, output_dir=directory))
    if steps := options.get("save_summaries_steps"):
        summaries = _v1.SummarySaverHook(
            save_steps=steps, output_dir=directory, scaffold=scaffold
        )
        hooks.append(summaries)
    steps = options.get("save_checkpoint_steps")
    if options.get("save_checkpoint_secs"):
        # The workers' clocks differ, and with them the step before which each saves.
        steps = _DEFAULT_SAVE_STEPS
    if steps:
        checkpoints = _v1.CheckpointSaverHook(
            directory,
            save_steps=steps,
            scaffold=scaffold,
            save_graph_def=options.get("save_graph_def", True),
        )
        hooks.append(checkpoints)
    return hooks
