"""The interface of all engines, and the state of a job."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from launch.engines.record import Record
from tf_config.commands import as_typed
from tf_config.errors import Mistake

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Planned = TypeVar("Planned", contravariant=True)

ENGINES = ("ssh", "slurm", "kubernetes", "ray")
"""The modules of this package that are an `Engine`."""

GROUP = "tfdist.engines"
"""The group of the entry points of engines in other packages.

Each has the engine's name, and a module that is an `Engine`. Its `main` is the command that
`tfdist NAME` runs, as that of `launch.ssh` is.
"""

STARTING, RUNNING, ENDED = "starting", "running", "ended"


class EngineError(Mistake):
    """An engine cannot do what was asked; the message says what is missing."""


@dataclass(frozen=True)
class Status:
    """The state of a job.

    Attributes:
        state: `starting`, `running` or `ended`.
        code: The exit status of a job that has ended; None if nobody recorded it.
        reason: Why it ended, has not started yet, or runs without some tasks; '' if there
            is nothing to say.
        hosts: The hosts of the tasks that the engine has placed by now, by the tasks'
            names; the record's hosts if the engine does not tell.
    """

    state: str
    code: int | None = None
    reason: str = ""
    hosts: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.state != ENDED:
            return f"{self.state}: {self.reason}" if self.reason else self.state
        how = "without an exit status" if self.code is None else f"with {self.code}"
        return f"ended {how}{f': {self.reason}' if self.reason else ''}"


class Engine(Protocol[Planned]):
    """The verbs. A module with these functions is one.

    `Planned` is what the engine's command plans: a `launch.job.job.Job`, or what is submitted
    to an engine that decides later where tasks run.
    """

    def render(self, job: Planned) -> str:
        """Returns the job in a form to run by hand; starts nothing."""

    def run(self, job: Planned, record: Record) -> int:
        """Submits a job, follows it to its end, and returns its exit status.

        However this process ends, the job ends with it.
        """

    def detach(self, job: Planned, record: Record) -> None:
        """Submits a job that continues without this process."""

    def status(self, record: Record) -> Status:
        """Returns how a job stands."""

    def follow(self, record: Record) -> Iterator[str]:
        """Yields the job's output, line by line, until the job has ended."""

    def logs(self, record: Record, task: str) -> Iterator[str]:
        """Yields the lines that a task has written so far."""

    def cancel(self, record: Record) -> None:
        """Ends a job and waits until nothing of it is left; again does nothing."""


def load(name: str) -> Engine[Any]:
    """Returns an engine, of this package or of another."""
    if name in ENGINES:
        return cast(Engine[Any], importlib.import_module(f"launch.engines.{name}"))
    others = of_other_packages()
    if name not in others:
        known = ", ".join([*ENGINES, *others])
        raise EngineError(f"there is no engine {name!r}; choose one of {known}")
    try:
        return cast(Engine[Any], others[name].load())
    except ImportError as error:
        raise EngineError(
            f"engine {name!r} must be a module; {others[name].value} cannot be imported "
            f"({error}): install the package again"
        ) from error


def command_of(name: str) -> Callable[[Sequence[str]], int]:
    """Returns the command of an engine of another package."""
    return cast(Callable[[Sequence[str]], int], vars(load(name))["main"])


def of_other_packages() -> "dict[str, EntryPoint]":
    """Returns the engines that other packages have, by name."""
    # Imported late: it imports much.
    from importlib.metadata import entry_points

    return {each.name: each for each in entry_points(group=GROUP)}


def tell(command: str, text: str) -> None:
    """Tells the user something besides a job's output, in the name of a command."""
    said = as_typed(f"launch.{command}: {text}", sys.argv[0])
    print(said, file=sys.stderr, flush=True)
