"""How peers.py measures: losses first, then turns."""

import contextlib
import dataclasses
import itertools
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import peers_systems
from peers_cluster import Contender, Links, Loopback
from peers_results import Learnt, Measured, Round, Updates
from turns import in_turn

# One for each network of this process, of which a few exist at a time.
_LETTERS = itertools.cycle(string.ascii_lowercase)


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        workload: The label of the workload.
        rounds: Turns of each contender.
        seconds: Seconds of a turn, about.
        learn_steps: Steps before a loss is taken.
        losses: Losses to take of each contender.
        grain: What numbers of steps are a multiple of.
        link: The rate of the link of each process, as `tc` says it; None for loopback.
    """

    workload: str
    rounds: int
    seconds: float
    learn_steps: int
    losses: int
    grain: int
    link: str | None = None

    def rounded(self, steps: float) -> int:
        """Returns a multiple of the grain, at least one, near a number of steps."""
        return max(1, round(steps / self.grain)) * self.grain


def measure(
    names: Sequence[str],
    job: peers_systems.Job,
    plan: Plan,
    logs: Path,
    about: dict[str, object],
) -> Measured:
    """Measures every contender on one workload."""
    result = Measured(plan.workload, about)
    for name in names:
        for index in range(1, plan.losses):
            with contextlib.closing(_start(name, job, plan, logs, index)) as fresh:
                result.learnt.append(learn(fresh, plan, index))
    with contextlib.ExitStack() as stack:
        ready: list[tuple[Contender, int]] = []
        for name in names:
            contender = _start(name, job, plan, logs, 0)
            stack.enter_context(contextlib.closing(contender))
            result.learnt.append(learn(contender, plan, 0))
            ready.append((contender, warm_up(contender, plan) if plan.rounds else 0))
            contender.stop()
        for index in range(plan.rounds):
            for contender, steps in in_turn(ready, index):
                result.rounds.append(turn(contender, steps, plan, index))
        for contender, _ in ready:
            contender.go_on()
            counted = contender.evaluate()["iterations"]
            result.updates.append(Updates(contender.name, contender.steps, counted))
            contender.stop()
    return result


def _start(
    name: str, job: peers_systems.Job, plan: Plan, logs: Path, index: int
) -> Contender:
    folder = logs / re.sub(r"[^\w-]+", "_", f"{plan.workload}-{name}-{index}")
    if plan.link is None:
        network: Loopback | Links = Loopback()
    else:
        tag = next(_LETTERS)
        network = Links(["chief:0", *job.tasks], plan.link, tag)
    placed = dataclasses.replace(job, address=network.address)
    processes = peers_systems.processes(name, placed)
    contender = Contender(name, processes, folder, network)
    try:
        contender.connect()
    except BaseException:
        contender.close()
        raise
    return contender


def learn(contender: Contender, plan: Plan, index: int) -> Learnt:
    """Trains from the initial weights, and evaluates."""
    steps = plan.rounded(plan.learn_steps)
    contender.train(steps)
    found = contender.evaluate()
    print(
        f"{plan.workload}: {contender.name} has loss {found['loss']:.4f} and accuracy "
        f"{found['accuracy']:.3f} after {steps} steps, and loss "
        f"{found['training_loss']:.4f} on what it was trained on"
    )
    return Learnt(
        contender.name,
        index,
        steps,
        found["loss"],
        found["accuracy"],
        found["training_loss"],
    )


def warm_up(contender: Contender, plan: Plan) -> int:
    """Returns the steps that a contender does in a turn, after training as many."""
    some = plan.rounded(50 * plan.seconds)
    # The first time something may still be built, traced or read.
    contender.train(some)
    seconds = contender.train(some)
    steps = plan.rounded(some * plan.seconds / seconds)
    contender.train(steps)
    return steps


def turn(contender: Contender, steps: int, plan: Plan, index: int) -> Round:
    """Measures one turn, in which only this contender runs."""
    contender.go_on()
    cpu, sent = contender.cpu(), contender.network_bytes()
    seconds = contender.train(steps)
    after = contender.cpu()
    sent = contender.network_bytes() - sent
    contender.stop()
    used = {task: after[task] - cpu.get(task, 0.0) for task in after}
    result = Round(plan.workload, contender.name, index, steps, seconds, used, sent)
    print(
        f"{plan.workload}, round {index}: {contender.name} did "
        f"{result.steps_per_second:.0f} steps/s with {result.cpu_ms():.2f} CPU ms and "
        f"{result.kilobytes:.0f} kB a step"
    )
    return result
