"""Functions on workers that Ray has started, from Python: see `Executor`."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch.engines import ray_launcher_process, ray_rank_process, ray_request
from launch.engines.engine import EngineError
from launch.engines.ray_reservation import Reservation, answers
from launch.network import ports
from launch.secure import mode
from tf_config import Cluster, Task, TFConfig, contract, proxies
from tf_config.address import bracketed

_CANDIDATES = 20
_OPEN = (
    "the ports of the workers are open: anyone who can reach {} can run code there while "
    "they train, and read what they send each other; secure='private' says that nobody "
    "can"
)
_GRACE_PERIOD = 5.0  # seconds
_START_TIMEOUT = 60.0


class WorkerError(RuntimeError):
    """A function has failed on a worker; `__cause__` is its exception, if it came over.

    Attributes:
        rank: The worker's index.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class WorkerLostError(WorkerError):
    """The process of a worker, or its node, has died."""


class Executor:
    """Workers on a Ray cluster, in whose processes Python functions run.

        with Executor(num_workers=2, address="auto") as executor:
            executor.start()
            weights = executor.run(train, args=["data.csv"])

    Each function finds the TF_CONFIG of a cluster of workers in its environment, and
    trains with `tfdist.MultiWorkerMirroredStrategy` or `tfdist.RingStrategy`. A worker
    has one process from `start` to `shutdown`, and TensorFlow joins a cluster once per
    process: for another training, start another executor.

    Args:
        num_workers: How many workers.
        cpus_per_worker: The CPUs that Ray reserves for each.
        gpus_per_worker: The GPUs that it reserves for each, and shows to it alone.
        memory: The memory that it reserves for each, such as `4G`.
        address: The cluster, as `ray.init` takes it. It is not used if this process is
            connected to one already.
        runtime_env: The environment that Ray prepares on the nodes, as for `ray.init`.
        env: Variables for the workers.
        timeout: Seconds within which Ray must have reserved everything.
        secure: The protection from unauthorized hosts. There is none, and `off` warns
            of that. `private` says that nobody else can reach the nodes.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        cpus_per_worker: int = 1,
        gpus_per_worker: int = 0,
        memory: str | None = None,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 300.0,
        secure: str = mode.OFF,
    ) -> None:
        for name, value, least in (
            ("num_workers", num_workers, 1),
            ("cpus_per_worker", cpus_per_worker, 1),
            ("gpus_per_worker", gpus_per_worker, 0),
        ):
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{name} must be an integer of at least {least}; received {value!r}"
                )
        if not timeout > 0:
            raise ValueError(f"timeout must be > 0 seconds; received {timeout!r}")
        if secure not in (mode.OFF, mode.PRIVATE):
            raise ValueError(
                f"secure must be {mode.OFF!r} or {mode.PRIVATE!r}, since an executor has "
                f"no TLS; received {secure!r}"
            )
        bundle: dict[str, float] = {"CPU": cpus_per_worker}
        if memory is not None:
            bundle["memory"] = ray_request.memory(memory)
        self._tasks = [f"worker:{rank}" for rank in range(num_workers)]
        self._groups = ray_request.groups(self._tasks, bundle, gpus_per_worker)
        self._address = address
        self._runtime_env = dict(runtime_env or {})
        self._env = dict(env or {})
        self._timeout = timeout
        self._secure = secure
        self._reservation: Reservation | None = None
        self._has_connected = False
        self._ranks: list[Any] = []
        self._addresses: list[str] = []

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] = (),
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the workers, and on each the object that `execute` works on.

        Args:
            executable_cls: The class of the object, or a function that makes it.
            executable_args: Its arguments.
            executable_kwargs: Its keyword arguments.

        Raises:
            EngineError: If Ray is not installed, or cannot give what is needed in time.
            WorkerError: If the object cannot be made.
            RuntimeError: If the workers are running.
        """
        if self._ranks:
            raise RuntimeError("the workers are running: call shutdown() first")
        ray_launcher_process.check_installed()
        try:
            self._start()
            if self._secure == mode.OFF:
                warnings.warn(_OPEN.format(", ".join(self._addresses)), stacklevel=2)
            if executable_cls:
                kwargs = dict(executable_kwargs or {})
                self._call("build", executable_cls, tuple(executable_args), kwargs)
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a function on every worker, at the same time.

        Returns:
            The result of each worker, by rank.

        Raises:
            WorkerError: If it fails on a worker: as soon as the first has failed, and
                with the stack there. Workers that then still wait for the others are
                ended after 5 s, and the executor with them.
            WorkerLostError: If a worker's process or node dies.
            RuntimeError: If the workers are not running.
        """
        return self._call("run", function, tuple(args), dict(kwargs or {}))

    def execute(self, function: Callable[[Any], Any]) -> list[Any]:
        """Calls a function on every worker, with the object that stays there.

        Returns and raises what `run` does.
        """
        return self._call("execute", function)

    def shutdown(self) -> None:
        """Ends the workers, and releases the reservations; again does nothing."""
        ranks, self._ranks = self._ranks, []
        reservation, self._reservation = self._reservation, None
        if not (ranks or reservation or self._has_connected):
            return
        import ray

        for rank in ranks:
            ray.kill(rank)
        if reservation:
            reservation.release()
        if self._has_connected:
            self._has_connected = False
            ray.shutdown()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def _start(self) -> None:
        import ray

        ray.cloudpickle.register_pickle_by_value(ray_rank_process)
        options: dict[str, Any] = {}
        if not ray.is_initialized():
            ray.init(self._address, runtime_env=self._runtime_env)
            self._has_connected = True
        elif self._runtime_env:
            options["runtime_env"] = self._runtime_env
        self._reservation = Reservation(self._groups, self._timeout, source="timeout")
        actor = ray.remote(ray_rank_process.Rank)
        self._ranks = [
            actor.options(**self._reservation.options(task), **options).remote()
            for task in self._tasks
        ]
        self._configure()

    def _configure(self) -> None:
        """Tells every worker who is in the cluster."""
        import ray

        # Workers on one node look at different ports.
        every = ports.at_random(_CANDIDATES * len(self._ranks))
        asked = [
            rank.where.remote(every[index :: len(self._ranks)])
            for index, rank in enumerate(self._ranks)
        ]
        found = answers(asked, max(_START_TIMEOUT, self._timeout), "timeout")
        self._addresses = [place["address"] for place in found]
        if missing := [place["address"] for place in found if place["port"] is None]:
            raise EngineError(f"{missing[0]} has no free port for a worker")
        cluster = Cluster.from_dict(
            {"worker": [f"{bracketed(p['address'])}:{p['port']}" for p in found]}
        )
        asked = []
        for index, (rank, place) in enumerate(zip(self._ranks, found, strict=True)):
            env = {
                **proxies.exception_for(self._addresses, place["proxies"]),
                **self._env,
                contract.TF_CONFIG: TFConfig(cluster, Task("worker", index)).to_json(),
            }
            asked.append(rank.set_environment.remote(env))
        ray.get(asked)

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        if not self._ranks:
            raise RuntimeError("the workers are not running: call start() first")
        from ray import cloudpickle

        pickled = cloudpickle.dumps(arguments)
        try:
            return self._gather(
                [getattr(rank, method).remote(pickled) for rank in self._ranks]
            )
        except KeyboardInterrupt:
            self.shutdown()  # Nobody knows how far the workers are.
            raise

    def _gather(self, asked: Sequence[Any]) -> list[Any]:
        """Returns the result of each worker, or raises the first error."""
        import ray

        results: dict[int, Any] = {}
        error: WorkerError | None = None
        pending, deadline = list(asked), float("inf")
        while pending and time.monotonic() < deadline:
            done, pending = ray.wait(pending, timeout=1.0)
            for each in done:
                rank = asked.index(each)
                try:
                    results[rank] = _result(rank, self._addresses[rank], each)
                except WorkerError as failed:
                    error = error or failed
                    deadline = min(deadline, time.monotonic() + _GRACE_PERIOD)
        if error is None:
            return [results[rank] for rank in range(len(asked))]
        if pending or isinstance(error, WorkerLostError):
            self.shutdown()
            text = f"{error}\nThe other workers were ended: call start() to go on."
            error.args = (text,)
        raise error


def _result(rank: int, address: str, asked: Any) -> Any:
    """Returns the result of a call on a worker, or raises a `WorkerError`."""
    import ray

    name = f"worker {rank} on {address}"
    try:
        pickled, stack = ray.get(asked)
    except ray.exceptions.RayError as lost:
        why = next(iter(str(lost).splitlines()), "")
        raise WorkerLostError(
            rank, f"{name} was lost: its process or its node has died ({why})"
        ) from None
    if not stack:
        return ray.cloudpickle.loads(pickled)
    try:
        cause = ray.cloudpickle.loads(pickled)
    except Exception:
        cause = None  # Its class is not here.
    raise WorkerError(rank, f"{name} failed:\n\n{stack}") from cause
