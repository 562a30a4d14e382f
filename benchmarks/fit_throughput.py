"""Throughput of Keras 3 on parameter servers: `fit` of tfdist and its alternatives.

    python benchmarks/fit_throughput.py --json=fit.json --plot=fit.png

The others are `tf_keras` (its `fit` on TensorFlow's own strategy) and `loop` (a
custom loop with a ClusterCoordinator); contenders.py describes them. Each has its own
chief, 2 ps and 2 workers, as processes on this machine. All stay alive and take turns, so
that other load affects all of them alike: the ratios compare consecutive turns.
"""

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence

import results
import turns
from absl import app, flags
from driver import CONTENDERS, Contender, running
from workload import MODELS, Workload


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("repeats", 5, "Number of measured repeats.", lower_bound=1)
    flags.DEFINE_integer("steps", 300, "Steps per repeat.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 64, "Examples per step.", lower_bound=1)
    flags.DEFINE_list(
        "models", list(MODELS), f"Models to train, of {', '.join(MODELS)}."
    )
    flags.DEFINE_list("steps_per_execution", ["1", "10"], "Steps per call.")
    flags.DEFINE_list(
        "contenders", list(CONTENDERS), f"Contenders, of {', '.join(CONTENDERS)}."
    )
    flags.DEFINE_integer(
        "num_ps", 2, "Parameter servers of each contender.", lower_bound=1
    )
    flags.DEFINE_integer("num_workers", 2, "Workers of each contender.", lower_bound=1)
    flags.DEFINE_string("json", None, "Write every repeat to this file.")
    flags.DEFINE_string("plot", None, "Draw the steps/s into this .png file.")
    for name, allowed in (("models", MODELS), ("contenders", CONTENDERS)):
        flags.register_validator(
            name,
            lambda values, allowed=allowed: values and set(values) <= set(allowed),
            f"must be some of {','.join(allowed)}",
        )
    flags.register_multi_flags_validator(
        ["steps", "steps_per_execution"],
        lambda values: all(
            each.isdigit() and int(each) > 0 and values["steps"] % int(each) == 0
            for each in values["steps_per_execution"]
        ),
        "--steps_per_execution must be divisors of --steps, such as 1,10",
    )


def measure(
    contenders: Sequence[Contender], workload: Workload
) -> Iterator[results.Repeat]:
    """Lets the contenders take turns; each repeat starts with a different one."""
    for contender in contenders:
        contender.warm_up(workload)
    for index in range(workload.repeats):
        for contender in turns.in_turn(contenders, index):
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
        Workload(model, values.batch_size, values.steps, int(each), values.repeats)
        for model in values.models
        for each in values.steps_per_execution
    ]
    about = turns.environment("tensorflow", "keras", "tf_keras")
    about["load_average"] = round(os.getloadavg()[0], 1)
    repeats: list[results.Repeat] = []
    with running(values.contenders, values.num_ps, values.num_workers) as contenders:
        for workload in workloads:
            for repeat in measure(contenders, workload):
                repeats.append(repeat)
                print(
                    f"{repeat.workload} repeat {repeat.index} {repeat.contender}: "
                    f"{repeat.steps_per_second:.1f} steps/s, "
                    f"{repeat.cpu_ms():.1f} CPU ms a step",
                    flush=True,
                )
        memory = sum(contender.memory() for contender in contenders)
        about["memory_gib"] = round(memory / 2**30, 1)
    about["load_average_after"] = round(os.getloadavg()[0], 1)
    done = {"environment": about, "repeats": [dataclasses.asdict(r) for r in repeats]}
    turns.keep(values.json, done)
    print(results.section(done))
    idle = max(repeat.idle_cpu / repeat.seconds for repeat in repeats)
    print(f"The waiting contenders used {idle:.1%} of one core at most.", about)
    if values.plot:
        results.plot(repeats, values.plot)
    return 0 if all(repeat.ran_on_workers for repeat in repeats) else 1


if __name__ == "__main__":
    define_flags()
    app.run(lambda argv: sys.exit(main(argv)))
