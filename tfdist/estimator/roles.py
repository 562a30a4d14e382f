"""What each task of a cluster does: chief, worker, ps and evaluator.

tensorflow-estimator asks TensorFlow for this, by the functions below that have a name
without an underscore. TensorFlow 2.16 and later do not have them any more.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import tf_config
from tfdist.cluster.startup import wait_for
from tfdist.estimator import _tf
from tfdist.estimator.clusters import Kind, kind_of
from tfdist.estimator.ending import watch_chief
from tfdist.estimator.environment import check_writable, read_tf_config
from tfdist.low_level.ending import report_done, serve_until_done

_log = logging.getLogger("tfdist")


def init_run_config(config: Any, _: dict[str, Any]) -> None:
    """Sets what the `RunConfig` of a strategy knows of its cluster."""
    found = read_tf_config()
    in_step = kind_of(config.train_distribute) is Kind.IN_STEP
    if found is None or not in_step or found.task.job == "evaluator":
        config._init_distributed_setting_from_environment_var(
            {} if found is None else _as_dict(found)
        )
        config._maybe_overwrite_session_config_for_distributed_training()
        return
    # Without a chief, the first worker is: TensorFlow's own reading has no such case.
    cluster = found.cluster
    chief = tf_config.Task("chief" if cluster.chief else "worker", 0)
    config._cluster_spec = tf.train.ClusterSpec(cluster.cluster_spec())
    config._task_type, config._task_id = found.task.job, found.task.index
    config._is_chief = found.task == chief
    config._master = config._evaluation_master = ""
    config._num_ps_replicas = 0
    config._num_worker_replicas = len(cluster.chief) + len(cluster.worker)
    config._global_id_in_cluster = [*cluster.tasks()].index(found.task)
    config._distribute_coordinator_mode = "independent_worker"


def should_run_distribute_coordinator(config: Any) -> bool:
    """Whether `train_and_evaluate` below is to run the task."""
    return bool(config.cluster_spec) or config.task_type == "evaluator"


def train_and_evaluate(
    estimator: Any, train_spec: Any, eval_spec: Any, executor_class: type
) -> None:
    """Runs this process's task of a cluster, to its end.

    Raises:
        ModelDirError: If this task writes to the model's directory, and cannot.
        tf_config.ClusterError: If its address cannot be served from this process.
        StartupTimeoutError: If a ps does not answer in time.
    """
    config = estimator.config
    if config.task_type in ("chief", "evaluator"):
        check_writable(estimator.model_dir)
    if getattr(config, "_distribute_coordinator_mode", None):
        estimator.train(
            train_spec.input_fn,
            max_steps=train_spec.max_steps,
            hooks=list(train_spec.hooks),
            saving_listeners=train_spec.saving_listeners,
        )
        return
    executor = _with_server(executor_class)(
        estimator=estimator,
        train_spec=train_spec,
        eval_spec=eval_spec,
        continuous_eval_listener=_listener(config),
    )
    if config.task_type == "ps":
        serve_until_done(executor._start_std_server(config))
        return
    if config.task_type in ("chief", "worker"):
        _wait_for_ps(config)
    executor.run()
    if executor.server is not None:
        report_done(executor.server)


def estimator_train(
    estimator: Any,
    train: Callable[[Any, tf.distribute.Strategy, Sequence[Any]], Any],
    hooks: Sequence[Any],
) -> None:
    """Trains as a worker that is in step with the others."""

    def work(strategy: tf.distribute.Strategy) -> None:
        context = _tf.worker_context()
        own = copy.copy(estimator)
        own._config = copy.copy(estimator.config)
        own._config._is_chief = context.is_chief
        own._config._session_config = own._session_config = context.session_config
        own._config._train_distribute = own._train_distribution = strategy
        train(own, strategy, hooks)

    _tf.run_worker(work, estimator.config)


def estimator_evaluate(
    estimator: Any,
    evaluate: Callable[[Any, tf.distribute.Strategy, Sequence[Any]], Any],
    hooks: Sequence[Any],
) -> Any:
    """Evaluates in this process alone."""
    return evaluate(estimator, estimator.config.eval_distribute, hooks)


def _listener(config: Any) -> Any:
    found = read_tf_config()
    if config.task_type != "evaluator" or found is None:
        return None
    watch = watch_chief(found.cluster, config._session_creation_timeout_secs)
    if watch is None:
        return None
    # It has to be of this class: nothing else is listened to.
    listener = _tf.module("training")._ContinuousEvalListener()
    listener.before_eval, listener.after_eval = watch.before_eval, watch.after_eval
    return listener


def _with_server(executor_class: Any) -> Any:
    class Executor(executor_class):
        """Keeps the server of this task, which the ps are told of the end with."""

        server = None

        def _start_std_server(self, config: Any) -> Any:
            try:
                self.server = super()._start_std_server(config)
            except (tf.errors.OpError, RuntimeError) as error:
                raise tf_config.ClusterError(
                    f"{config.task_type}:{config.task_id} cannot serve on "
                    f"{config.master}: {error}. Is another process using that port, or "
                    "does the host name another machine?"
                ) from error
            return self.server

    return Executor


def _wait_for_ps(config: Any) -> None:
    jobs = config.cluster_spec.as_dict()
    ps = {
        tf_config.Task("ps", index): address
        for index, address in enumerate(jobs.get("ps", []))
    }
    wait_for(
        ps,
        config._session_creation_timeout_secs,
        "Start it with the same script, or give a longer "
        "RunConfig(session_creation_timeout_secs=...).",
    )


def _as_dict(config: tf_config.TFConfig) -> dict[str, Any]:
    return {
        "cluster": config.cluster.cluster_spec(),
        "task": {"type": config.task.job, "index": config.task.index},
    }
