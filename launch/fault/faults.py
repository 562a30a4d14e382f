"""What goes wrong in a cluster, and when: plain data, drawn from a seed.

A fault waits for a step of the program and not for a time, so that a schedule means the
same on a fast machine and on a slow one.
"""

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

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
"""Those of the network between the tasks."""
CHECKPOINT_KINDS = frozenset({CORRUPT, FULL_DISK})
"""Those of the checkpoints, which strike the chief alone."""
LETHAL_KINDS = frozenset({KILL, CORRUPT})
"""Those after which a process is another one."""

_LASTS = (1.0, 4.0)  # seconds
_LONGEST_WAIT = 1.0  # seconds
_SCHEDULE = (
    'a schedule is JSON such as {"faults": [{"kind": "kill", "task": "ps:0", '
    '"step": 100}]}'
)
_AMOUNTS = {DELAY: (0.02, 0.2), SLOW: (2e5, 2e6)}


class FaultError(ValueError):
    """A fault that there is not, or that cannot be had here."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    | kind        | what happens to the task                                        |
    | ----------- | --------------------------------------------------------------- |
    | `kill`      | SIGKILL                                                         |
    | `stop`      | SIGSTOP, and SIGCONT after `seconds`                            |
    | `partition` | nothing that it sends or is sent arrives, for `seconds`         |
    | `delay`     | what it sends and is sent takes `amount` seconds longer         |
    | `slow`      | each of its connections carries `amount` bytes a second         |
    | `corrupt`   | the newest checkpoint is cut short, and the chief killed        |
    | `full_disk` | the file system of the checkpoints is full, for `seconds`       |

    Attributes:
        kind: One of `FAULT_KINDS`.
        task: Such as `ps:0` or `chief`.
        step: It waits until the program has reported this step; 0 does not wait for
            the program, only for all tasks to be started.
        wait: For how many seconds it waits after that.
        seconds: How long it lasts; a `stop` of 0 is for ever.
        amount: In seconds, or bytes a second.

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
                f"{self.kind!r} is a fault of the chief, whose checkpoints they are; "
                f"received the task {self.task!r}"
            )
        if min(self.step, self.wait, self.seconds, self.amount) < 0:
            raise FaultError(f"no number of a fault is negative; received {self}")
        if self.kind == SLOW and not self.amount:
            raise FaultError("a 'slow' link carries some bytes a second; received 0")

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
    """Faults, and the seed that they were drawn from, if they were."""

    faults: tuple[Fault, ...]
    seed: int | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """Which kinds there are."""
        return frozenset(fault.kind for fault in self.faults)

    def to_json(self) -> str:
        """Writes the schedule; `from_json` reads it back."""
        faults = [asdict(fault) for fault in self.faults]
        return json.dumps({"seed": self.seed, "faults": faults}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Schedule":
        """Reads what `to_json` wrote, or somebody by hand.

        Raises:
            FaultError: If it is not a schedule.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FaultError(f"{_SCHEDULE}; this is no JSON: {error}") from None
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
            raise FaultError(f"{name!r} of a fault is a text; received {value}")
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if name not in texts and not is_number:
            raise FaultError(f"{name!r} of a fault is a number; received {value}")
    for name in texts:
        if name not in value:
            raise FaultError(f"every fault has a {name!r}; received {value}")
    return Fault(**value)


def check_kinds(kinds: Collection[str]) -> None:
    """Checks that there are such kinds.

    Raises:
        FaultError: If not.
    """
    for kind in kinds:
        if kind not in FAULT_KINDS:
            raise FaultError(
                f"unknown fault {kind!r}; it is one of {', '.join(FAULT_KINDS)}"
            )


def draw(
    seed: int,
    tasks: Sequence[str],
    steps: int,
    kinds: Sequence[str] = (KILL, STOP),
    count: int = 2,
) -> Schedule:
    """Draws a schedule, the same one from the same arguments wherever it is drawn.

    Args:
        seed: Of the draw.
        tasks: The names of the tasks that may be struck, such as `ps:0`.
        steps: How many the program runs; faults wait for any of them but the last
            tenth, after which there may be nothing left to disturb.
        kinds: What may go wrong, each as likely as the others.
        count: How many faults.

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
            "a schedule needs tasks, kinds and steps, and no negative number of faults; "
            f"received {list(tasks)}, {list(kinds)}, steps={steps}, count={count}"
        )
    # Python promises the same numbers of every version for this method alone.
    number = random.Random(seed).random

    def choose(choices: Sequence[str]) -> str:
        return choices[int(number() * len(choices))]

    def between(least: float, most: float) -> float:
        return round(least + number() * (most - least), 3)

    def draw_one() -> Fault:
        kind, task = choose(kinds), choose(tasks)
        step, wait = int(number() * 0.9 * steps), between(0, _LONGEST_WAIT)
        seconds, amount = between(*_LASTS), between(*_AMOUNTS.get(kind, (0, 0)))
        return Fault(
            kind,
            "chief" if kind in CHECKPOINT_KINDS else task,
            step,
            wait,
            0.0 if kind in LETHAL_KINDS else seconds,
            amount,
        )

    faults = sorted((draw_one() for _ in range(count)), key=lambda fault: fault.step)
    return Schedule(tuple(faults), seed)
