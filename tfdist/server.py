"""The program of a ps or a worker: a TensorFlow server that serves until killed.

    TF_CONFIG=... python -m tfdist.server

The chief's program places variables on the ps and sends steps to the workers;
a server runs no user code. It imports the modules that TFDIST_IMPORTS names, which
register operations of other libraries.
"""

import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import tensorflow as tf

import tf_config
from tf_config.contract import EXIT_USAGE, IMPORTS
from tfdist.cluster import spinning, status
from tfdist.cluster.startup import check_no_proxy

# A worker that waits for a variable of another task blocks a thread. On a machine with
# two cores, TensorFlow's default leaves too few threads to answer that task. Each GPU may
# run a step.
MIN_INTER_OP_THREADS = 4


def start(config: tf_config.TFConfig) -> tf.distribute.Server:
    """Starts this task's server and returns it.

    Args:
        config: The cluster, and the ps or worker task that this process is.

    Raises:
        tf_config.ClusterError: If the task is not a ps or a worker, this process
            cannot serve on its address, or the environment names a proxy for a task or
            a module that cannot be imported.
    """
    task = config.task
    if task.job not in ("ps", "worker"):
        raise tf_config.ClusterError(
            f"a server is a ps or a worker; this task is {task}. Start your own "
            "script with the TF_CONFIG of the chief instead."
        )
    import_operations(os.environ.get(IMPORTS, ""))
    server = start_server(config.cluster.cluster_spec(), task)
    status.publish(config, server)
    return server


def import_operations(names: str) -> None:
    """Imports modules that register operations; `names` is the value of `IMPORTS`.

    Raises:
        tf_config.ClusterError: If one cannot be imported.
    """
    for name in filter(None, map(str.strip, names.split(","))):
        try:
            importlib.import_module(name)
        except Exception as error:
            raise tf_config.ClusterError(
                f"{IMPORTS} names {name}, whose operations the program may use, but it "
                f"cannot be imported here: {type(error).__name__}: {error}. Install it, or "
                "start the job with --import= and the modules that the servers need, if any"
            ) from error


def start_server(
    cluster: Mapping[str, Sequence[str]], task: tf_config.Task
) -> tf.distribute.Server:
    """Starts the server of any task and returns it.

    Args:
        cluster: The addresses of the tasks of each job.
        task: The task of this process.

    Raises:
        tf_config.ClusterError: If this process cannot serve on its address, or the
            environment names a proxy for a task.
    """
    check_no_proxy(address for job in cluster.values() for address in job)
    devices = len(tf.config.list_physical_devices("GPU")) or 1
    options = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=max(
            MIN_INTER_OP_THREADS * devices,
            tf.config.threading.get_inter_op_parallelism_threads()
            or (os.cpu_count() or 1),
        )
    )
    options.experimental.disable_thread_spinning = not spinning.spins()
    try:
        return tf.distribute.Server(
            {job: list(addresses) for job, addresses in cluster.items()},
            job_name=task.job,
            task_index=task.index,
            protocol="grpc",
            config=options,
        )
    except (tf.errors.OpError, RuntimeError) as error:
        raise tf_config.ClusterError(
            f"{task} cannot serve on {cluster[task.job][task.index]}: {error}. Is "
            "another process using that port, or does the host name another machine?"
        ) from error


def main() -> int:
    """Serves the task that TF_CONFIG names until the process is killed.

    Returns:
        The exit status: `EXIT_USAGE` if the cluster or the task is wrong.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Python handles Ctrl-C only when TensorFlow returns, and join() never does.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = start(tf_config.TFConfig.from_environment())
    except tf_config.ClusterError as error:
        print(f"tfdist.server: {error}", file=sys.stderr)
        return EXIT_USAGE
    server.join()
    return 0


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] == ["--help"] else EXIT_USAGE)
    sys.exit(main())
