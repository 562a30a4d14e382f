"""The TensorFlow server of a task."""

from typing import Any

import tensorflow as tf

import tf_config

# By address. A second `train` finds the server of the first, which TensorFlow stops as
# soon as nothing refers to it.
_servers: dict[str, tf.distribute.Server] = {}


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
