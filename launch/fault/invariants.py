"""Invariants of a job under faults, once it has ended. Pure decisions."""

from dataclasses import dataclass

from launch.fault.progress import Progress, Result


@dataclass(frozen=True)
class Ending:
    """The end of a job.

    Attributes:
        status: Its exit status; None if it had not ended by the deadline.
        reason: The launcher's reason, unless the job simply succeeded.
        seconds: How long it ran, at most until the deadline.
        faults: The number of faults injected.
        progress: The reports of the script.
        left: Descriptions of the processes that were left behind.
    """

    status: int | None
    reason: str
    seconds: float
    faults: int
    progress: Progress
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Invariant:
    """An invariant, whether it holds, and what was observed."""

    name: str
    holds: bool
    seen: str


def judge(ending: Ending, may_fail: bool = False) -> list[Invariant]:
    """Checks each invariant.

    Args:
        ending: How the job ended.
        may_fail: Whether an error with a reason is acceptable, for example after more
            faults than the job may recover from.
    """
    found = [_ends(ending, may_fail)]
    # A script that failed may not have reported its result.
    if ending.status == 0:
        found.append(_counts(ending.progress.result, ending.faults))
    left = ", ".join(ending.left)
    return [*found, Invariant("no process is left", not left, left or "none")]


def _ends(ending: Ending, may_fail: bool) -> Invariant:
    if ending.status is None:
        return Invariant("it ends", False, f"not within {ending.seconds:.0f} s")
    if ending.status == 0:
        return Invariant("it ends", True, f"after {ending.seconds:.0f} s, trained")
    if not ending.reason:
        return Invariant("it ends", False, f"with status {ending.status}, silently")
    return Invariant("it ends", may_fail, ending.reason.partition("\n")[0])


def _counts(result: Result | None, faults: int) -> Invariant:
    name = "no step is lost, nor doubled beyond what may be"
    if result is None:
        return Invariant(name, False, "the program has not reported its result")
    least = result.expected + result.ahead
    most = least + faults * result.in_flight
    ahead = f", {result.ahead} in the checkpoint before" if result.ahead else ""
    return Invariant(
        name,
        least <= result.steps <= most,
        f"{result.steps} steps of {least} to {most} ({result.expected} asked for"
        f"{ahead})",
    )
