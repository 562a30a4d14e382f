"""Times how long each worker takes to read a pipeline, stage by stage."""

import functools
import statistics
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.cluster.liveness.step_error import reason
from tfdist.data.chief_only_reasons import OnlyTheChiefReads
from tfdist.data.errors import SourceError
from tfdist.data.leased import LeasedDataset
from tfdist.data.pipeline_report import (
    PipelineReport,
    seconds_of_stages,
    seconds_of_steps,
)
from tfdist.keras.distributed_data import undistributed
from tfdist.parameter_server.feed.lease_pipeline import LeasePipeline, traced
from tfdist.parameter_server.feed.leased_batches import LeaseReaders
from tfdist.parameter_server.feed.worker_calls import on_workers
from tfdist.parameter_server.seam.ps_strategy import PsStrategy

# A message has several steps, and its worker reads for the next ones while it computes one.
_AT_ONCE = 4
_LOST = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError)


def measured_pipeline(
    strategy: PsStrategy,
    readers: LeaseReaders,
    dataset: tf.data.Dataset,
    batches: int,
    step_seconds: float | None,
) -> PipelineReport:
    """Times each worker as it reads the same leases once for each stage; see the strategy.

    Raises:
        SourceError: If workers do not read the dataset by leases, or cannot.
        ValueError: If a number is not positive.
    """
    if batches < 1:
        raise ValueError(f"batches must be at least 1; received {batches!r}")
    if step_seconds is not None and not step_seconds > 0:
        raise ValueError(f"step_seconds must be > 0 seconds; received {step_seconds!r}")
    try:
        leased = readers.leased(undistributed(dataset))
        leased.source.check()
        functions = [_timed(leased, stage) for stage in range(len(leased.stages))]
    except OnlyTheChiefReads as found:
        raise SourceError(
            f"no report: the workers do not read this dataset by leases: {found.why}. "
            f"To have them read it so, {found.what_to_do}"
        ) from None
    count = (-(-batches // _AT_ONCE) + 1) * _AT_ONCE
    leases = list(_tf.of_this_cluster(leased.leases).repeat().take(count))
    groups = [leases[i : i + _AT_ONCE] for i in range(0, len(leases), _AT_ONCE)]
    away = {task.index for task in strategy.presence.away}
    workers = [each for each in range(strategy.num_workers) if each not in away]
    # All at the same time, as they read in training.
    answers = on_workers(
        strategy, workers, functools.partial(_times, functions, groups)
    )
    for worker, answer in sorted(answers.items()):
        if isinstance(answer, tf.errors.OpError) and not isinstance(answer, _LOST):
            raise SourceError(f"worker {worker} cannot read: {reason(answer.message)}")
    return PipelineReport(
        tuple(name for name, _ in leased.stages),
        tuple(_of(answers.get(each)) for each in range(strategy.num_workers)),
        seconds_of_steps(step_seconds, _steps(strategy)),
    )


def _steps(strategy: PsStrategy) -> tuple[int, ...]:
    """Returns how many steps each worker has run; zeros if one of them is lost."""
    try:
        return strategy.worker_report().steps
    except tf.errors.OpError:
        return (0,) * strategy.num_workers


def _of(answer: Any) -> tuple[float, ...]:
    return answer if isinstance(answer, tuple) else ()


def _timed(leased: LeasedDataset, stage: int) -> Any:
    """Returns a function that reads leases up to a stage: the seconds of each."""
    read = functools.partial(leased.read_until, stage)
    specs = leased.leases.element_spec
    pipeline = LeasePipeline(*traced(read, specs))

    def timed(*leases: tuple[tf.Tensor, ...]) -> tf.Tensor:
        began = tf.timestamp()
        with tf.control_dependencies([began]):
            # The reads wait for the clock, and below the clock for the reads.
            after = [[tf.identity(part) for part in lease] for lease in leases]
        done = [each for lease in after for each in pipeline.read(lease)]
        with tf.control_dependencies(done):
            return (tf.timestamp() - began) / len(leases)

    function = tf.function(timed, autograph=False)
    return function.get_concrete_function(*[specs] * _AT_ONCE)


def _times(functions: list[Any], groups: list[Any]) -> tuple[float, ...]:
    """Returns the seconds of each stage for a lease, on the device of the caller."""

    def mean(function: Any) -> float:
        # The first prepares the function.
        return statistics.fmean([float(function(*group)) for group in groups][1:])

    # The first read may come from a disk, so the source is read twice.
    first = mean(functions[0])
    return seconds_of_stages([mean(each) for each in functions], first)
