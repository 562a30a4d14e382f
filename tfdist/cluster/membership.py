"""This process's membership in a cluster: its task, and that it joins only once."""

import atexit
import copy
import os
import socket
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

import tf_config
from tf_config import commands, contract
from tfdist import _tf
from tfdist._support.authors import is_raised_by_tfdist
from tfdist._support.endings import ending_in_the_program


def check_eager(strategy: str) -> None:
    """Checks that TensorFlow runs in eager mode, as Keras training requires."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"tfdist.{strategy} trains in eager mode, and this is graph mode: after "
            "tf.compat.v1.disable_eager_execution(), within tf.Graph().as_default(), or "
            "in a tf.function. Construct it outside of them, before anything else. A "
            "program in TensorFlow 1 style trains by tfdist.estimator, or by "
            "tf.compat.v1.train as in docs/estimator.md"
        )


Given: TypeAlias = (
    tf.distribute.cluster_resolver.ClusterResolver | tf_config.TFConfig | None
)
"""The types that a strategy takes as `cluster_resolver`."""

PS = ("chief", "ps", "worker")
CHIEF_AND_WORKERS = ("chief", "worker")
WORKERS = ("worker",)
"""The jobs of the clusters that the strategies need."""


def config_of(
    given: Given, needs: Sequence[str], is_chief: bool = False
) -> tf_config.TFConfig:
    """Returns the cluster, by default of TF_CONFIG, and this process's task in it.

    Args:
        given: The strategy's argument.
        needs: The jobs that the cluster must have.
        is_chief: True if this process is the chief where a resolver names no task.
    """
    if isinstance(given, tf.distribute.cluster_resolver.ClusterResolver):
        return _config_of_resolver(given, is_chief)
    if given is None and not os.environ.get(contract.TF_CONFIG):
        raise tf_config.ClusterError(
            "TF_CONFIG is not set: start this script as a task of a cluster. "
            f"{command_of(needs)}"
        )
    if given is None:
        return tf_config.TFConfig.from_environment()
    if not isinstance(given, tf_config.TFConfig):
        raise TypeError(
            "cluster_resolver must be a tf.distribute.cluster_resolver.ClusterResolver, "
            "or a tf_config.TFConfig(cluster, tf_config.Task('chief', 0)): the "
            f"tf_config.Cluster, and this process's task; received {given!r}"
        )
    return given


def command_of(needs: Sequence[str], config: tf_config.TFConfig | None = None) -> str:
    """Returns a sentence with the command that starts this program on such a cluster.

    Args:
        needs: The jobs that the cluster must have.
        config: The cluster and the task that do not fit.
    """
    flags = []
    has = config.cluster.as_dict() if config else {}
    is_chief = config is None or config.task.job == "chief"
    # With ps, this is the default.
    if needs == CHIEF_AND_WORKERS or (needs == PS and "ps" in has and not is_chief):
        flags.append("--program=coordinator")
    # A notebook has no file, and the arguments of its kernel are no command.
    argv = sys.argv if hasattr(sys.modules["__main__"], "__file__") else []
    told = os.environ.get(contract.COMMAND, "")
    return f"Type: {commands.starting(told, argv, needs, has, flags)}"


def _config_of_resolver(
    resolver: tf.distribute.cluster_resolver.ClusterResolver, is_chief: bool
) -> tf_config.TFConfig:
    if isinstance(resolver, tf.distribute.cluster_resolver.TPUClusterResolver):
        raise tf_config.ClusterError(
            "cluster_resolver must resolve a cluster of CPUs or GPUs; received one of TPUs, "
            "on which tf.distribute.TPUStrategy trains"
        )
    jobs = dict(resolver.cluster_spec().as_dict())
    # Slurm's knows the task once it has resolved the cluster.
    job, index = resolver.task_type, resolver.task_id
    if is_chief and job in (None, "", "chief") and "chief" not in jobs:
        # As under TensorFlow, a coordinator that the cluster does not list.
        job, index, jobs["chief"] = "chief", 0, [f"localhost:{_free_port()}"]
    # All processes that leave their index out would be the first task of the job.
    if not job or (index is None and len(jobs.get(job, ())) > 1):
        raise tf_config.ClusterError(
            "cluster_resolver must name the task of this process; received a "
            f"{type(resolver).__name__} that names {job or 'none'}. Pass it task_type= and "
            "task_id=, or start this script with a TF_CONFIG and leave cluster_resolver out"
        )
    return tf_config.TFConfig(
        tf_config.Cluster.from_dict(jobs), tf_config.Task(job, index or 0)
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def worker_config_of(given: Given, strategy: str) -> tf_config.TFConfig:
    """Returns a cluster without ps, and this process's task: the chief or a worker."""
    config = config_of(given, WORKERS)
    if config.cluster.has_parameter_servers:
        raise tf_config.ClusterError(
            f"{strategy} keeps no variables on a ps; received the jobs "
            f"{', '.join(config.cluster.as_dict())}. Use ParameterServerStrategy, or "
            f"start it without ps. {command_of(WORKERS, config)}"
        )
    if config.task.job not in ("chief", "worker"):
        raise tf_config.ClusterError(
            f"{strategy} runs on the chief and the workers; this task is {config.task}. "
            "An evaluator can load what the chief saves, without a strategy"
        )
    return config


def resolver_of(
    config: tf_config.TFConfig, absent: Collection[tf_config.Task] = ()
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns the resolver that gives TensorFlow the cluster and the task.

    TensorFlow is not to connect to absent tasks: it would wait without a deadline.
    """
    return Resolver(
        _WithoutAbsent(config.cluster.cluster_spec(), absent),
        task_type=config.task.job,
        task_id=config.task.index,
        rpc_layer="grpc",
    )


class _WithoutAbsent(tf.train.ClusterSpec):
    """A cluster in which absent tasks count, and are not connected to.

    TensorFlow counts the tasks in `as_dict`, and connects to those of `as_cluster_def`.
    """

    def __init__(
        self, cluster: Mapping[str, Any], absent: Collection[tf_config.Task]
    ) -> None:
        super().__init__(cluster)
        self._absent = tuple(absent)

    def as_cluster_def(self) -> Any:
        """Returns the cluster without the absent tasks, a `ClusterDef`."""
        # A copy: TensorFlow returns the message that the spec itself keeps.
        present = copy.deepcopy(super().as_cluster_def())
        for job in present.job:
            for task in self._absent:
                if task.job == job.name:
                    # A map by index, so that the other tasks keep theirs.
                    job.tasks.pop(task.index, None)
        return present


class Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    """Resolves a cluster, a task, and the task's accelerators."""

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Counts a task's devices other than CPUs: `{"GPU": 2}`, or {} if none.

        The task defaults to this process's.
        """
        # SimpleClusterResolver would return the counts given to its constructor, so this
        # skips it.
        return dict(
            tf.distribute.cluster_resolver.ClusterResolver.num_accelerators(
                self,
                self.task_type if task_type is None else task_type,
                self.task_id if task_id is None else task_id,
                config_proto,
            )
        )


def _is_folded(_: Any) -> bool:
    return tf.debugging.is_traceback_filtering_enabled()


def _is_explained(_: Any, error: BaseException) -> bool:
    return _is_folded(_) and is_raised_by_tfdist(error)


class JoinsOnce:
    """Mixin for strategies: a copy is the strategy itself.

    A process can join a cluster only once, so it cannot have a second strategy. Errors of
    tfdist in a constructor have the program's frames alone.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "__init__" in vars(cls):
            short = ending_in_the_program(cls.__init__, _is_explained, _is_folded)
            cls.__init__ = short  # type: ignore[method-assign]

    def __copy__(self) -> "JoinsOnce":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "JoinsOnce":
        return self


class Membership:
    """Cluster membership of this process, which TensorFlow allows only once."""

    def __init__(self) -> None:
        # With the process id, since the fork of a process that joined has not joined.
        self._joined: tuple[int, str] | None = None
        self._strategy: Callable[[], tf.distribute.Strategy | None] = lambda: None

    @property
    def strategy(self) -> tf.distribute.Strategy | None:
        """The strategy that connected this process, while it is in use."""
        return self._strategy()

    def check_none(self) -> None:
        """Checks that this process has not joined a cluster."""
        if self._joined and self._joined[0] == os.getpid():
            raise RuntimeError(
                f"this process has a {self._joined[1]} already, and TensorFlow connects "
                "a process to one cluster, once. Keep that strategy and use it again, "
                "or start a new process"
            )

    def joined(self, strategy: tf.distribute.Strategy) -> None:
        """Records the strategy that connected this process."""
        self._joined = (os.getpid(), type(strategy).__name__)
        # Weakly, or this module would keep the strategy alive until the exit.
        self._strategy = weakref.ref(strategy)
        # At exit, servers may be gone that TensorFlow would ask to delete functions.
        atexit.register(_tf.keep_functions)


MEMBERSHIP = Membership()
"""The membership of this process."""
