"""Roles of a cluster's tasks (chief, worker, ps, evaluator), and their servers.

The public functions stand in for `tensorflow.python.distribute.estimator_training`,
which TensorFlow 2.16 removed. tensorflow-estimator calls them.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import tf_config
from tfdist.cluster.startup import wait_for
from tfdist.estimator.environment import check_writable, read_tf_config
from tfdist.estimator.evaluator import ChiefWatch, executor_of, watch_chief
from tfdist.low_level.ending import report_done, serve_until_done

# TensorFlow's values. Training may diverge if many workers update new weights at once.
_DELAY_SECONDS_PER_WORKER = 5
_LONGEST_DELAY_SECONDS = 60

# Servers by address. A second `train` finds the server of the first, which TensorFlow
# stops as soon as nothing refers to it.
_servers: dict[str, tf.distribute.Server] = {}


def init_run_config(config: Any, _: dict[str, Any]) -> None:
    """Sets what a `RunConfig` with a strategy knows about its cluster."""
    config.read_cluster()


def should_run_distribute_coordinator(config: Any) -> bool:
    """Returns True if `train_and_evaluate` below runs this task."""
    return bool(config.cluster_spec) or config.task_type == "evaluator"


def train_and_evaluate(
    estimator: Any, train_spec: Any, eval_spec: Any, executor_class: type
) -> None:
    """Runs this process's task of a cluster until the task is done."""
    config = estimator.config
    if config.task_type in ("chief", "evaluator"):
        check_writable(estimator.model_dir)
    if config.task_type == "evaluator":
        executor_of(executor_class, _watch(config))(
            estimator=estimator, train_spec=train_spec, eval_spec=eval_spec
        ).run()
    elif config.task_type == "ps":
        serve_until_done(start_server(config))
    elif config.is_synchronous:
        _train(estimator, train_spec, train_spec.saving_listeners)
    else:
        _wait_for_ps(config)
        server = start_server(config)
        time.sleep(_delay(config))
        listeners = train_spec.saving_listeners if config.is_chief else None
        _train(estimator, train_spec, listeners)
        if server is not None:
            report_done(server)


def _train(estimator: Any, train_spec: Any, saving_listeners: Any) -> None:
    estimator.train(
        train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=list(train_spec.hooks),
        saving_listeners=saving_listeners,
    )


def _delay(config: Any) -> float:
    if config.is_chief:
        return 0
    longest = config.experimental_max_worker_delay_secs
    return min(
        _LONGEST_DELAY_SECONDS if longest is None else int(longest),
        (config.task_id + 1) * _DELAY_SECONDS_PER_WORKER,
    )


def estimator_train(
    estimator: Any,
    train: Callable[[Any, tf.distribute.Strategy, Sequence[Any]], Any],
    hooks: Sequence[Any],
) -> None:
    """Trains as one of several synchronous workers."""
    # Every reading of `config` copies the strategy. A copy numbers its collectives from
    # the beginning, so workers agree on the numbers in a second `train`, too.
    config = estimator.config
    ensure_synchronous_server(config)
    train(estimator, config.train_distribute, hooks)


def estimator_evaluate(
    estimator: Any,
    evaluate: Callable[[Any, tf.distribute.Strategy, Sequence[Any]], Any],
    hooks: Sequence[Any],
) -> Any:
    """Evaluates in this process alone."""
    return evaluate(estimator, estimator.config.eval_distribute, hooks)


def _watch(config: Any) -> ChiefWatch | None:
    found = read_tf_config()
    if config.task_type != "evaluator" or found is None:
        return None
    return watch_chief(found.cluster, config.session_creation_timeout_secs)


def _wait_for_ps(config: Any) -> None:
    jobs = config.cluster_spec.as_dict()
    ps = {
        tf_config.Task("ps", index): address
        for index, address in enumerate(jobs.get("ps", []))
    }
    wait_for(
        ps,
        config.session_creation_timeout_secs,
        "Start it with the same script, or give a longer "
        "RunConfig(session_creation_timeout_secs=...).",
    )


def start_server(config: Any) -> tf.distribute.Server | None:
    """Starts this task's server, unless the task is the only one of its cluster."""
    if not config.master:
        return None
    options = config.session_config
    return _serve(
        config,
        tf.compat.v1.ConfigProto(gpu_options=options.gpu_options if options else None),
    )


def ensure_synchronous_server(config: Any) -> None:
    """Starts the server of a synchronous worker, unless its strategy has started it."""
    # A strategy makes eager execution join the cluster, which renames the devices. In a
    # program that has disabled eager execution, it starts no server.
    device = tf.config.list_logical_devices("CPU")[0].name
    if tf.DeviceSpec.from_string(device).job is not None:
        return
    if _address(config) in _servers:
        return
    options = config.train_distribute.update_config_proto(config.session_config)
    # Device filters are for the session of one client, and a server has several.
    del options.device_filters[:]
    _servers[_address(config)] = _serve(config, options)


def _serve(config: Any, options: tf.compat.v1.ConfigProto) -> tf.distribute.Server:
    try:
        return tf.distribute.Server(
            config.cluster_spec,
            job_name=config.task_type,
            task_index=config.task_id,
            config=options,
            protocol=config.protocol,
        )
    except (tf.errors.OpError, RuntimeError) as error:
        raise tf_config.ClusterError(
            f"{config.task_type}:{config.task_id} cannot serve on {_address(config)}: "
            f"{error}. Check that no other process uses the port, and that the host "
            "name is that of this machine"
        ) from error


def _address(config: Any) -> str:
    address: str = config.cluster_spec.task_address(config.task_type, config.task_id)
    return address
