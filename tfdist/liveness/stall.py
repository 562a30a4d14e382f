"""Whether a training stalls, and for whom it waits: pure decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

WARN, RAISE, RESTART = "warn", "raise", "restart"
ON_STALL = (WARN, RAISE, RESTART)


def check_on_stall(on_stall: str | None) -> None:
    """Checks what is to be done about a stall.

    Raises:
        ValueError: If it is neither one of `ON_STALL` nor None.
    """
    if on_stall is not None and on_stall not in ON_STALL:
        raise ValueError(
            f"on_stall must be one of {', '.join(ON_STALL)}, or None; received "
            f"{on_stall!r}"
        )


class Kind(Enum):
    """What a training waits for."""

    TASK = "a task does not answer"
    STEPS = "no step has finished, though every task answers"
    DATA = "the data pipeline has given no batch, and every task answers"


@dataclass(frozen=True)
class Stall:
    """A wait that has taken too long.

    Attributes:
        kind: What it waits for.
        tasks: Who keeps it waiting, by name, if it is known.
        fatal: Whether the training cannot go on without them.
    """

    kind: Kind
    tasks: tuple[str, ...] = ()
    fatal: bool = True


@dataclass(frozen=True)
class Seen:
    """What is known at one moment. All times are seconds.

    Attributes:
        working: Whether somebody needs the cluster: a program between two calls of
            `fit` may well outlive it.
        silent: For how long each task has not answered; those that do are absent.
        without_progress: For how long steps were under way and none has finished.
        without_data: For how long the chief has waited for its next batch.
        busy: For how long each worker has run its step; idle ones are absent.
    """

    working: bool
    silent: Mapping[str, float]
    without_progress: float = 0.0
    without_data: float = 0.0
    busy: Mapping[str, float] | None = None


def stalled(seen: Seen, timeout: float) -> Stall | None:
    """Decides whether a wait has taken longer than `timeout` seconds.

    A silent ps stops everything. A silent worker does once no step finishes any more;
    until then the others go on without it.
    """
    if not seen.working:
        return None
    silent = tuple(sorted(t for t, time in seen.silent.items() if time >= timeout))
    stands_still = seen.without_progress >= timeout
    if silent:
        fatal = stands_still or any(task.startswith("ps:") for task in silent)
        return Stall(Kind.TASK, silent, fatal)
    if seen.silent:
        return None  # It may be the reason of the rest: let it have its time.
    if seen.without_data >= timeout:
        return Stall(Kind.DATA)
    if stands_still:
        busy = seen.busy or {}
        return Stall(Kind.STEPS, tuple(t for t, s in busy.items() if s >= timeout))
    return None


def action(stall: Stall, on_stall: str | None, supervised: bool) -> str:
    """What is done about a stall: one of `ON_STALL`.

    Unless somebody has said what to do, a slow step or a slow pipeline, which may well
    be as slow as it is meant to be, is only warned of; a task that does not answer is
    started again where there is a supervisor, and else an error once nothing goes on.
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
    """Says of each task what it was last seen doing."""
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
