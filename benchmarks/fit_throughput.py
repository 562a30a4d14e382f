"""How fast Keras 3 trains on parameter servers: `fit` of tfdist against two others.

    python benchmarks/fit_throughput.py --json=fit.json --plot=fit.png

The others are `tf_keras` (its `fit` on TensorFlow's own strategy) and `loop` (a
custom loop with a ClusterCoordinator); contenders.py says what each does. Each has a
chief and a cluster of its own, 2 ps and 2 workers, as processes on this machine.
All are kept alive and take turns, so that whatever else slows the machine down slows
all of them down: look at the ratios, which compare turns that follow each other.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import multiprocessing
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import results
import rich
import rich.console
from absl import app, flags
from workload import MODELS, Workload

import launch
import tf_config

CONTENDERS = ("fit", "tf_keras", "loop", "fit_data")
_DEADLINE_SECONDS = 900.0


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("repeats", 5, "Repeats that are measured.", lower_bound=1)
    flags.DEFINE_integer("steps", 300, "Steps a repeat.", lower_bound=1)
    flags.DEFINE_multi_enum("models", MODELS, MODELS, "What to train.")
    flags.DEFINE_multi_integer(
        "steps_per_execution", [1, 10], "Steps a worker is sent at once.", lower_bound=1
    )
    flags.DEFINE_integer("batch_size", 64, "Examples a step.", lower_bound=1)
    flags.DEFINE_multi_enum("contenders", CONTENDERS[:3], CONTENDERS, "Who takes part.")
    flags.DEFINE_integer("num_ps", 2, "Parameter servers of each.", lower_bound=1)
    flags.DEFINE_integer("num_workers", 2, "Workers of each.", lower_bound=1)
    flags.DEFINE_string("json", None, "Write every repeat to this file.")
    flags.DEFINE_string("plot", None, "Draw the steps/s into this file, as .png.")
    flags.register_multi_flags_validator(
        ["steps", "steps_per_execution"],
        lambda values: all(
            values["steps"] % each == 0 for each in values["steps_per_execution"]
        ),
        "--steps must be a multiple of every --steps_per_execution",
    )


class ContenderError(RuntimeError):
    """A contender that ended or did not answer in time."""


class Contender:
    """A chief and its cluster, driven from here.

    Args:
        name: One of `CONTENDERS`.
        servers: The running ps and workers.
    """

    def __init__(self, name: str, servers: launch.Servers) -> None:
        self.name = name
        self._log = Path(servers.log_dir) / "chief.log"
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._chief = spawn.Process(
            target=_serve,
            args=(name, servers.tf_config, theirs, self._log),
            daemon=True,
        )
        self._chief.start()
        theirs.close()
        self._tasks = {
            task: psutil.Process(pid)
            for task, pid in {"chief": self._chief.pid, **servers.pids}.items()
        }
        self._iterations = self._worker_steps = 0

    def connect(self) -> None:
        """Waits until the chief has connected to its cluster."""
        self._receive()

    def warm_up(self, workload: Workload) -> None:
        """Builds the model, traces the step and runs the first repeat."""
        self._iterations = 0
        self._connection.send(workload)
        self.run()

    def run(self) -> tuple[float, int, int | None]:
        """Runs one repeat.

        Returns:
            The seconds that it took, and the steps that the optimizer and the workers
            have counted in it.
        """
        self._connection.send("begin")
        seconds, iterations, worker_steps = self._receive()
        counted = iterations - self._iterations
        self._iterations = iterations
        if worker_steps is not None:
            worker_steps, self._worker_steps = (
                worker_steps - self._worker_steps,
                worker_steps,
            )
        return seconds, counted, worker_steps

    def cpu(self) -> dict[str, float]:
        """Returns the CPU seconds that each task has used, by its name."""
        times = {task: process.cpu_times() for task, process in self._tasks.items()}
        return {task: each.user + each.system for task, each in times.items()}

    def memory(self) -> int:
        """Returns the bytes of main memory that the tasks hold."""
        return sum(process.memory_info().rss for process in self._tasks.values())

    def close(self) -> None:
        """Ends the chief."""
        self._connection.close()
        self._chief.terminate()
        self._chief.join()

    def _receive(self) -> Any:
        if not self._connection.poll(_DEADLINE_SECONDS):
            raise ContenderError(
                f"{self.name} did not answer within {_DEADLINE_SECONDS:g} s"
            )
        try:
            return self._connection.recv()
        except EOFError:
            raise ContenderError(
                f"the chief of {self.name} ended:\n{self._log.read_text()}"
            ) from None


def _serve(
    name: str, config: tf_config.TFConfig, connection: Connection, log: Path
) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Imported late: TensorFlow is for the chiefs, not for the process that measures.
    import contenders

    # The process that measures is gone: nobody is left to tell.
    with contextlib.suppress(EOFError, BrokenPipeError):
        contenders.serve(name, config, connection)


@contextlib.contextmanager
def running(
    names: Sequence[str], num_ps: int, num_workers: int
) -> Iterator[list[Contender]]:
    """Starts every contender with a cluster of its own; ends them all on leaving."""
    with contextlib.ExitStack() as stack:
        logs = stack.enter_context(tempfile.TemporaryDirectory())
        contenders = []
        for name in names:
            servers = stack.enter_context(
                launch.servers(num_ps, num_workers, log_dir=os.path.join(logs, name))
            )
            contender = Contender(name, servers)
            stack.callback(contender.close)
            contender.connect()
            contenders.append(contender)
        yield contenders


def measure(
    contenders: Sequence[Contender], workload: Workload
) -> Iterator[results.Repeat]:
    """Lets the contenders take turns; who begins changes with every repeat."""
    for contender in contenders:
        contender.warm_up(workload)
    for index in range(workload.repeats):
        first = index % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            yield _measure_one(contender, contenders, workload, index)


def _measure_one(
    contender: Contender,
    contenders: Sequence[Contender],
    workload: Workload,
    index: int,
) -> results.Repeat:
    before = {each.name: each.cpu() for each in contenders}
    seconds, iterations, worker_steps = contender.run()
    used = {
        each.name: {
            task: after - before[each.name][task] for task, after in each.cpu().items()
        }
        for each in contenders
    }
    cpu = used.pop(contender.name)
    return results.Repeat(
        workload=workload.label,
        contender=contender.name,
        index=index,
        steps=workload.steps,
        seconds=seconds,
        cpu=cpu,
        idle_cpu=sum(sum(tasks.values()) for tasks in used.values()),
        iterations=iterations,
        worker_steps=worker_steps,
    )


def environment() -> dict[str, Any]:
    """Returns what the numbers depend on, beside the flags."""
    packages = ("tensorflow", "keras", "tf_keras")
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
    }


def plot(repeats: Sequence[results.Repeat], path: str) -> None:
    """Draws the median steps/s of every contender, and their spread."""
    from matplotlib.figure import Figure

    workloads = results.unique(repeat.workload for repeat in repeats)
    contenders = results.unique(repeat.contender for repeat in repeats)
    figure = Figure(figsize=(2 + 1.5 * len(workloads), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(contenders)
    for i, contender in enumerate(contenders):
        spreads = [
            results.Spread.of(
                repeat.steps_per_second
                for repeat in results.of(repeats, workload, contender)
            )
            for workload in workloads
        ]
        axes.bar(
            [
                j + (i - (len(contenders) - 1) / 2) * width
                for j in range(len(workloads))
            ],
            [spread.median for spread in spreads],
            width,
            label=contender,
            yerr=[
                [spread.median - spread.least for spread in spreads],
                [spread.greatest - spread.median for spread in spreads],
            ],
            capsize=3,
        )
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_ylabel("steps/s, median and spread")
    axes.legend()
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark.

    Returns:
        The exit status: 1 if the steps did not run on the workers, whatever the speed.
    """
    if len(argv) > 1:
        raise app.UsageError(f"flags only; received {' '.join(argv[1:])}")
    values = flags.FLAGS
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    workloads = [
        Workload(model, values.batch_size, values.steps, each, values.repeats)
        for model in values.models
        for each in values.steps_per_execution
    ]
    about = environment()
    repeats: list[results.Repeat] = []
    with running(values.contenders, values.num_ps, values.num_workers) as contenders:
        for workload in workloads:
            for repeat in measure(contenders, workload):
                repeats.append(repeat)
                rich.print(
                    f"{repeat.workload} repeat {repeat.index} {repeat.contender}: "
                    f"{repeat.steps_per_second:.1f} steps/s, "
                    f"{repeat.cpu_ms():.1f} CPU ms a step"
                )
        memory = sum(contender.memory() for contender in contenders)
        about["memory_gib"] = round(memory / 2**30, 1)
    about["load_average_after"] = round(os.getloadavg()[0], 1)
    report(repeats, about)
    if values.json:
        with open(values.json, "w") as file:
            rows = [dataclasses.asdict(repeat) for repeat in repeats]
            json.dump({"environment": about, "repeats": rows}, file, indent=1)
    if values.plot:
        plot(repeats, values.plot)
    return 0 if all(repeat.ran_on_workers for repeat in repeats) else 1


def report(repeats: Sequence[results.Repeat], about: dict[str, Any]) -> None:
    """Prints the tables, and what they rest on."""
    console = rich.console.Console(width=110)
    console.print(results.measured_table(repeats))
    console.print(results.ratio_table(repeats))
    idle = max(repeat.idle_cpu / repeat.seconds for repeat in repeats)
    console.print(f"The waiting contenders used {idle:.1%} of one core at most.")
    console.print(json.dumps(about))


if __name__ == "__main__":
    define_flags()
    app.run(lambda argv: sys.exit(main(argv)))
