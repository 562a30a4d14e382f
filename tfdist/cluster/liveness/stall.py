"""Decides whether training has stalled, the cause, and the reaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

WARN, RAISE, RESTART = "warn", "raise", "restart"
ON_STALL = (WARN, RAISE, RESTART)


def check_on_stall(on_stall: str | None) -> None:
    """Checks what is to be done about a stall."""
    if on_stall is not None and on_stall not in ON_STALL:
        raise ValueError(
            f"on_stall must be one of {', '.join(ON_STALL)}, or None; received "
            f"{on_stall!r}"
        )


class Kind(Enum):
    """The reason why training waits."""

    TASK = "no answer from a task"
    STEPS = "every task answers, and no step has finished"
    DATA = "every task answers, and the data pipeline has returned no batch"


class Timeouts(NamedTuple):
    """The longest silence of a task, and the longest step or wait for a batch, in seconds."""

    task: float
    step: float


@dataclass(frozen=True)
class Stall:
    """A wait that has taken too long.

    Attributes:
        kind: The reason why training waits.
        tasks: The names of the tasks it waits for, if known.
        fatal: Whether training cannot continue without them.
    """

    kind: Kind
    tasks: tuple[str, ...] = ()
    fatal: bool = True


@dataclass(frozen=True)
class Seen:
    """The chief's knowledge at one moment. All times are in seconds.

    Attributes:
        working: Whether the program needs the cluster. Between two calls of `fit` it
            does not.
        silent: How long each task has not answered; tasks that answer are absent.
        without_progress: How long steps have been running without one finishing.
        without_data: How long the chief has waited for its next batch.
        busy: How long each worker has run its step; idle workers are absent.
    """

    working: bool
    silent: Mapping[str, float]
    without_progress: float = 0.0
    without_data: float = 0.0
    busy: Mapping[str, float] | None = None


def stalled(seen: Seen, timeouts: Timeouts) -> Stall | None:
    """Decides whether a wait has taken too long.

    A silent ps stops all training. A silent worker stops it once no step finishes;
    until then the other workers continue without it.
    """
    if not seen.working:
        return None
    silent = tuple(
        sorted(t for t, time in seen.silent.items() if time >= timeouts.task)
    )
    stands_still = seen.without_progress >= timeouts.step
    if silent:
        fatal = stands_still or any(task.startswith("ps:") for task in silent)
        return Stall(Kind.TASK, silent, fatal)
    if seen.silent:
        return None  # It may be the cause of the other waits: give it its full timeout.
    if seen.without_data >= timeouts.step:
        return Stall(Kind.DATA)
    if stands_still:
        busy = seen.busy or {}
        slow = tuple(t for t, s in busy.items() if s >= timeouts.step)
        return Stall(Kind.STEPS, slow)
    return None


def action(stall: Stall, on_stall: str | None, supervised: bool) -> str:
    """Returns the reaction to a stall: one of `ON_STALL`.

    Without `on_stall`, a slow step or a slow pipeline is only a warning: it may be as
    slow as intended. A task that does not answer is restarted if there is a supervisor;
    otherwise it is an error once training cannot continue.
    """
    if on_stall == WARN:
        return WARN
    if on_stall is None and stall.kind is not Kind.TASK:
        return WARN
    wanted = RESTART if on_stall is None else on_stall
    if wanted == RESTART and supervised:
        return RESTART
    return RAISE if stall.fatal else WARN


def lines(
    seen: Seen,
    problems: Mapping[str, str],
    steps: Mapping[str, int],
    tasks: Sequence[str],
) -> list[str]:
    """Returns one line per task with its last known activity."""
    busy = seen.busy or {}
    said = []
    for task in tasks:
        words = []
        if task in seen.silent:
            problem = problems.get(task, "does not answer")
            words.append(f"{problem} (for {seen.silent[task]:.0f} s)")
        else:
            words.append("answers")
        if task in steps:
            words.append(f"{steps[task]} functions finished")
        if task in busy:
            words.append(f"one under way for {busy[task]:.0f} s")
        said.append(f"  {task}: {', '.join(words)}")
    return said
