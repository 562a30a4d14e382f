"""Faults and their schedules: plain data, drawn from a seed.

A fault waits for a step of the script rather than a time, so a schedule means the same on
fast and slow machines.
"""

import json
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from tf_config.errors import Mistake

KILL, STOP, PARTITION, DELAY, SLOW, CORRUPT, FULL_DISK = FAULT_KINDS = (
    "kill",
    "stop",
    "partition",
    "delay",
    "slow",
    "corrupt",
    "full_disk",
)
LINK_KINDS = frozenset({PARTITION, DELAY, SLOW})
"""Faults of the network between the tasks."""
CHECKPOINT_KINDS = frozenset({CORRUPT, FULL_DISK})
"""Faults of the checkpoints, which only strike the chief."""
LETHAL_KINDS = frozenset({KILL, CORRUPT})
"""Faults after which a new process takes the place of the old one."""

_LASTS = (1.0, 4.0)  # seconds
_LONGEST_WAIT = 1.0  # seconds
_SCHEDULE = (
    'a schedule is JSON such as {"faults": [{"kind": "kill", "task": "ps:0", '
    '"step": 100}]}'
)
_AMOUNTS = {DELAY: (0.02, 0.2), SLOW: (2e5, 2e6)}


class FaultError(Mistake):
    """A fault is unknown, or impossible in this job or on this machine."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    | kind        | what happens to the task                                        |
    | ----------- | --------------------------------------------------------------- |
    | `kill`      | SIGKILL                                                         |
    | `stop`      | SIGSTOP, and SIGCONT after `seconds`                            |
    | `partition` | nothing it sends, and nothing sent to it, arrives for `seconds` |
    | `delay`     | its traffic takes `amount` seconds longer                       |
    | `slow`      | each of its connections carries `amount` bytes per second       |
    | `corrupt`   | the newest checkpoint is truncated, and the chief killed        |
    | `full_disk` | the file system of the checkpoints is full for `seconds`        |

    Attributes:
        kind: One of `FAULT_KINDS`.
        task: The name of the task, such as `ps:0` or `chief`.
        step: The fault waits until the script has reported this step; 0 only waits
            until all tasks have started.
        wait: How many seconds it waits after that.
        seconds: How long it lasts; a `stop` of 0 seconds lasts forever.
        amount: In seconds, or bytes per second.

    Raises:
        FaultError: If the kind is unknown, does not fit the task, or a number is
            negative.
    """

    kind: str
    task: str
    step: int = 0
    wait: float = 0.0
    seconds: float = 0.0
    amount: float = 0.0

    def __post_init__(self) -> None:
        check_kinds([self.kind])
        if self.kind in CHECKPOINT_KINDS and self.task != "chief":
            raise FaultError(
                f"{self.kind!r} strikes the chief, which owns the checkpoints; received "
                f"the task {self.task!r}"
            )
        if min(self.step, self.wait, self.seconds, self.amount) < 0:
            raise FaultError(f"the numbers of a fault must be >= 0; received {self}")
        if self.kind == SLOW and not self.amount:
            raise FaultError(
                "the amount of a 'slow' link must be > 0 bytes per second; received 0"
            )

    def __str__(self) -> str:
        words = [self.kind, self.task]
        if self.kind == DELAY:
            words.append(f"by {self.amount * 1e3:.0f} ms")
        if self.kind == SLOW:
            words.append(f"to {self.amount / 1e6:.1f} MB/s")
        if self.seconds:
            words.append(f"for {self.seconds:.1f} s")
        return " ".join(words)


@dataclass(frozen=True)
class Schedule:
    """Faults, and the seed they were drawn from; None if they were not drawn."""

    faults: tuple[Fault, ...]
    seed: int | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of the faults."""
        return frozenset(fault.kind for fault in self.faults)

    def to_json(self) -> str:
        """Returns the schedule as JSON; `from_json` reads it back."""
        faults = [asdict(fault) for fault in self.faults]
        return json.dumps({"seed": self.seed, "faults": faults}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Schedule":
        """Reads what `to_json` wrote, or a schedule written by hand.

        Raises:
            FaultError: If it is not a schedule.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            # The parser raises RecursionError for deeply nested JSON.
            raise FaultError(f"{_SCHEDULE}; this is not JSON: {error}") from None
        faults = value.get("faults") if isinstance(value, dict) else None
        if not isinstance(faults, list):
            raise FaultError(f"{_SCHEDULE}; this has no list of faults: {value!r:.100}")
        return cls(tuple(map(_fault, faults)), value.get("seed"))


def _fault(value: Any) -> Fault:
    if not isinstance(value, dict):
        raise FaultError(f"{_SCHEDULE}; received the fault {value!r:.100}")
    texts = ("kind", "task")
    allowed = [each.name for each in fields(Fault)]
    for name, given in value.items():
        if name not in allowed:
            raise FaultError(
                f"a fault has {', '.join(allowed)}; received {name!r} in {value}"
            )
        if name in texts and not isinstance(given, str):
            raise FaultError(f"{name!r} of a fault must be a string; received {value}")
        # JSON's true is an int to Python.
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if name not in texts and not is_number:
            raise FaultError(f"{name!r} of a fault must be a number; received {value}")
    for name in texts:
        if name not in value:
            raise FaultError(f"a fault needs a {name!r}; received {value}")
    return Fault(**value)


def check_kinds(kinds: Collection[str]) -> None:
    """Checks that all kinds are known.

    Raises:
        FaultError: If one is not.
    """
    for kind in kinds:
        if kind not in FAULT_KINDS:
            raise FaultError(
                f"unknown fault {kind!r}; choose one of {', '.join(FAULT_KINDS)}"
            )


def draw(
    seed: int,
    tasks: Sequence[str],
    steps: int,
    kinds: Sequence[str] = (KILL, STOP),
    count: int = 2,
) -> Schedule:
    """Draws a schedule; the same arguments give the same schedule on any machine.

    Args:
        seed: The seed.
        tasks: The names of the tasks that faults may strike, such as `ps:0`.
        steps: The number of steps the script runs. No fault waits for a step in the
            last tenth, when the job may be over before it has to recover.
        kinds: The kinds to choose from, with equal probability.
        count: The number of faults.

    Raises:
        FaultError: If there are no tasks, steps or kinds, or a kind is unknown.

    >>> for fault in draw(7, ["chief", "ps:0", "worker:0"], steps=500).faults:
    ...     print(fault.step, fault)
    16 kill ps:0
    292 kill chief
    """
    check_kinds(kinds)
    if not tasks or not kinds or steps < 1 or count < 0:
        raise FaultError(
            "a schedule needs at least one task, kind and step, and a number of faults "
            f">= 0; received {list(tasks)}, {list(kinds)}, steps={steps}, count={count}"
        )
    # Only this method gives the same numbers in every version of Python.
    number = random.Random(seed).random
    drawn = [_draw(number, tasks, steps, kinds) for _ in range(count)]
    return Schedule(tuple(sorted(drawn, key=lambda fault: fault.step)), seed)


def _draw(
    number: Callable[[], float], tasks: Sequence[str], steps: int, kinds: Sequence[str]
) -> Fault:
    def choose(choices: Sequence[str]) -> str:
        return choices[int(number() * len(choices))]

    def between(least: float, most: float) -> float:
        return round(least + number() * (most - least), 3)

    kind, task = choose(kinds), choose(tasks)
    step, wait = int(number() * 0.9 * steps), between(0, _LONGEST_WAIT)
    seconds, amount = between(*_LASTS), between(*_AMOUNTS.get(kind, (0, 0)))
    task = "chief" if kind in CHECKPOINT_KINDS else task
    seconds = 0.0 if kind in LETHAL_KINDS else seconds
    return Fault(kind, task, step, wait, seconds, amount)
