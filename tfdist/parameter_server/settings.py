"""Validated arguments of a `ParameterServerStrategy`, with the launcher's requests."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tf_config
from tf_config import contract
from tfdist._support.wire_dtype import checked_wire_dtype
from tfdist.cluster.liveness.stall import Timeouts, check_on_stall
from tfdist.cluster.membership import PS, Given, command_of, config_of
from tfdist.cluster.settings import (
    JobArguments,
    JobSettings,
    job_settings,
    min_workers_of,
)
from tfdist.consistency.combinations import check_combination, is_free
from tfdist.consistency.policy import Consistency, check_consistency, for_workers
from tfdist.consistency.setting import policy_of_environment
from tfdist.parameter_server.exchange.narrow import WIRE_DTYPES
from tfdist.parameter_server.exchange.policies import (
    ExchangeEvery,
    WhenChanged,
    check_exchange,
)
from tfdist.placement.placement import Placement, check_placement
from tfdist.variables.creation import check_partitioner

Path = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of a `ParameterServerStrategy`, as given."""

    cluster_resolver: Given
    placement: Placement | None
    partitioner: Callable[..., Any] | None
    stall_timeout: float | None
    on_stall: str | None
    exchange: ExchangeEvery | WhenChanged | None
    consistency: Consistency | None
    wire_dtype: str | None
    timeline: Path | None
    job: JobArguments


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Validated arguments of a strategy, with defaults filled in.

    Attributes:
        config: The cluster, with this process's task as the chief.
        timeouts: The longest silence of a task, and the longest step and wait for data.
        measures: Whether steps are measured. Only strategies with a policy pay for it.
    """

    config: tf_config.TFConfig
    placement: Placement | None
    partitioner: Callable[..., Any] | None
    job: JobSettings
    min_workers: int
    timeouts: Timeouts
    on_stall: str | None
    exchange: ExchangeEvery | WhenChanged
    consistency: Consistency
    wire_dtype: str | None
    timeline: Path | None
    measures: bool


def settings_of(given: Arguments) -> Settings:
    """Checks the arguments of a strategy; see there."""
    if given.placement is not None:
        check_placement(given.placement)
    if given.partitioner is not None:
        check_partitioner(given.partitioner)
    exchange = ExchangeEvery() if given.exchange is None else given.exchange
    check_exchange(exchange)
    consistency = given.consistency
    if consistency is None:
        consistency = policy_of_environment(os.environ)
    timeline = given.timeline or os.environ.get(contract.TIMELINE)
    check_consistency(consistency)
    wire_dtype = checked_wire_dtype(given.wire_dtype, WIRE_DTYPES)
    check_combination(consistency, exchange, wire_dtype)
    stall_timeout = _stall_timeout(given.stall_timeout)
    job = job_settings("ParameterServerStrategy", given.job, stall_timeout)
    check_on_stall(given.on_stall)
    config = _chief_of(given.cluster_resolver)
    num_workers = len(config.cluster.worker)
    # The number of the workers' devices is known once they are connected.
    for_workers(consistency, num_workers)
    asks = given.consistency is not None or bool(timeline)
    return Settings(
        config=config,
        placement=given.placement,
        partitioner=given.partitioner,
        job=job,
        min_workers=min_workers_of(job.min_workers, num_workers, default=num_workers),
        timeouts=Timeouts(job.peer_timeout, stall_timeout),
        on_stall=given.on_stall,
        exchange=exchange,
        consistency=consistency,
        wire_dtype=wire_dtype,
        timeline=timeline,
        measures=asks or not is_free(consistency),
    )


def _stall_timeout(given: float | None) -> float:
    """Returns the timeout from the user or the launcher, or 120 seconds.

    Raises:
        ValueError: If it is not a positive number.
    """
    text = os.environ.get(contract.STALL_TIMEOUT, "120")
    try:
        seconds = float(text) if given is None else given
    except ValueError:
        raise ValueError(
            f"{contract.STALL_TIMEOUT} must be a time > 0 seconds; received {text!r}"
        ) from None
    if not seconds > 0:
        raise ValueError(f"stall_timeout must be > 0 seconds; received {seconds!r}")
    return seconds


def _chief_of(given: Given) -> tf_config.TFConfig:
    cluster = config_of(given, PS, is_chief=True)
    command = command_of(PS, cluster)
    if not cluster.cluster.has_parameter_servers:
        raise tf_config.ClusterError(
            "ParameterServerStrategy needs a cluster with a ps, a worker and a chief; "
            f"received the jobs {', '.join(cluster.cluster.as_dict())}. {command}"
        )
    if cluster.task.job != "chief":
        raise tf_config.ClusterError(
            "ParameterServerStrategy runs on the chief alone; this task is "
            f"{cluster.task}. A ps or a worker runs `python -m tfdist.server`, which a "
            f"launcher starts for you. {command}"
        )
    return cluster
