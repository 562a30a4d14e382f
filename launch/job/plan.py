"""Plans a program on a cluster: one command and environment per task."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tf_config import JOBS, Cluster, Task, TFConfig, contract, proxies, split_address
from tf_config.errors import Mistake

AUTO, COORDINATOR, EVERY_TASK = "auto", "coordinator", "every_task"
PROGRAM_KINDS = (AUTO, COORDINATOR, EVERY_TASK)
"""The ways to run the user's script: on the chief only, or in every task."""

SERVER = ("-m", contract.SERVER_MODULE)
"""The arguments that make Python a server, on a ps or a worker of a coordinator."""


class PlanError(Mistake):
    """A program that cannot run on the given cluster."""


@dataclass(frozen=True)
class Program:
    """The user's script and its flags.

    Attributes:
        script: The path of a Python script, or the dotted name of a module.
        flags: The script's own arguments.
        is_module: Whether it is a module, which Python finds as `python -m` does.
        imports: The modules whose operations its servers need.
        command: A value of `contract.COMMAND`; '' if no command has started it.
    """

    script: str
    flags: tuple[str, ...] = ()
    is_module: bool = False
    imports: tuple[str, ...] = ()
    command: str = field(default="", compare=False)

    @property
    def argv(self) -> tuple[str, ...]:
        """The arguments of Python that run it."""
        return (*(["-m"] if self.is_module else []), self.script, *self.flags)

    @classmethod
    def of(cls, argv: Sequence[str]) -> "Program":
        """Returns the program that these arguments of Python run."""
        is_module = len(argv) > 1 and argv[0] == "-m"
        rest = argv[1:] if is_module else argv
        return cls("".join(rest[:1]), tuple(rest[1:]), is_module)


@dataclass(frozen=True)
class Remote:
    """The place of a task that is started from another machine.

    Attributes:
        host: The host's name, as the user gave it.
        connect: A command that runs a line of shell on the host: its last argument,
            which follows these.
        cwd: The task's working directory on the host.
    """

    host: str
    connect: tuple[str, ...]
    cwd: str


@dataclass(frozen=True)
class TaskPlan:
    """The program of one task, as plain data.

    Attributes:
        task: The task.
        address: Its `host:port`.
        argv: Its command.
        env: The variables it needs in addition to the environment it is started in.
        is_server: Whether it serves a coordinator; other tasks run the user's script.
        remote: The host that it runs on; None on the machine that starts it.
    """

    task: Task
    address: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    is_server: bool = False
    remote: Remote | None = None

    @property
    def name(self) -> str:
        """The task's short name: `chief`, `ps:0`."""
        return task_name(self.task)

    @property
    def host(self) -> str:
        """The host of the task's address."""
        return split_address(self.address)[0]

    @property
    def port(self) -> int:
        """The port of the task's address."""
        return split_address(self.address)[1]

    def telling(self, env: Mapping[str, str]) -> "TaskPlan":
        """Returns the plan with more variables."""
        return replace(self, env={**self.env, **env})

    def shell_line(self) -> str:
        """Returns the task as a line to paste into a shell."""
        env = {k: v for k, v in self.env.items() if k != contract.COMMAND}
        settings = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
        if self.remote is None:
            return " ".join([*settings, shlex.join(self.argv)])
        # The login shell of another host may not accept assignments before a command.
        words = ["cd", shlex.quote(self.remote.cwd), "&&", "env", *settings]
        there = " ".join([*words, shlex.join(self.argv)])
        return shlex.join([*self.remote.connect, there])

    @property
    def lines(self) -> list[str]:
        """The task as a person reads it: its name and address, then its `shell_line`."""
        return [f"# {self.name} on {self.address}", self.shell_line()]


def plan(
    cluster: Cluster,
    program: Program,
    kind: str = AUTO,
    *,
    python: str = sys.executable,
    server: Sequence[str] = SERVER,
) -> tuple[TaskPlan, ...]:
    """Plans every task of the cluster, in the order of `cluster.tasks()`.

    Args:
        cluster: The members of the cluster.
        program: The user's script and its flags.
        kind: One of `PROGRAM_KINDS`. A coordinator program runs the script on the chief
            and the evaluator, and a server on each ps and worker; an every-task
            program runs the script in every task. `auto` means coordinator if the
            cluster has parameter servers, and every-task otherwise.
        python: The interpreter.
        server: The arguments that make the interpreter a server.

    Raises:
        PlanError: If the kind is unknown, or does not fit the cluster.
    """
    coordinated = resolve_kind(cluster, kind) == COORDINATOR

    def plan_task(task: Task) -> TaskPlan:
        is_server = coordinated and task.job in ("ps", "worker")
        env = {contract.TF_CONFIG: TFConfig(cluster, task).to_json()}
        if is_server and program.imports:
            env[contract.IMPORTS] = ",".join(program.imports)
        if program.command and not is_server:
            env[contract.COMMAND] = program.command
        return TaskPlan(
            task=task,
            address=cluster.address(task),
            argv=(python, *(server if is_server else program.argv)),
            env=env,
            is_server=is_server,
        )

    return tuple(plan_task(task) for task in cluster.tasks())


def without_proxy(
    plans: Sequence[TaskPlan], environ: Mapping[str, str]
) -> tuple[TaskPlan, ...]:
    """Keeps the traffic between tasks off the proxy of the environment, if any.

    TensorFlow would send its calls through the proxy, and hang.
    """
    env = proxies.exception_for([each.host for each in plans], environ)
    return tuple(each.telling(env) for each in plans)


def tasks_of(counts: Mapping[str, int]) -> list[Task]:
    """Returns the tasks of a cluster with these numbers of each job, by job and index."""
    return [Task(job, i) for job in JOBS for i in range(counts.get(job, 0))]


def cluster_of(counts: Mapping[str, int], address: Callable[[Task], str]) -> Cluster:
    """Returns a cluster with these numbers of tasks of each job."""
    return Cluster.from_dict(
        {
            job: [address(Task(job, index)) for index in range(count)]
            for job, count in counts.items()
        }
    )


def task_name(task: Task) -> str:
    """Returns a task's short name: `ps:0`, but `chief`, since there is only one."""
    return task.job if task.job in ("chief", "evaluator") else str(task)


def log_name(task: str) -> str:
    """Returns the name of the log file of a task with a short name: `ps-0.log`."""
    return f"{task.replace(':', '-')}.log"


def resolve_kind(cluster: Cluster, kind: str = AUTO) -> str:
    """Returns the kind of program the cluster runs: `coordinator` or `every_task`.

    Raises:
        PlanError: If the kind is unknown, or does not fit the cluster.
    """
    if kind not in PROGRAM_KINDS:
        raise PlanError(
            f"unknown program {kind!r}; choose one of {', '.join(PROGRAM_KINDS)}"
        )
    if kind == COORDINATOR and not (cluster.chief and cluster.worker):
        raise PlanError(
            "a coordinator program needs a chief, which runs the script, and workers; "
            f"the cluster has only {' and '.join(cluster.jobs())}: add a "
            f"{'worker' if cluster.chief else 'chief'}, or choose {EVERY_TASK}"
        )
    if kind == AUTO:
        return COORDINATOR if cluster.ps else EVERY_TASK
    return kind
