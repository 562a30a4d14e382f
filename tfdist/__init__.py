"""Distribution strategies for TensorFlow and Keras 3.

Importing this package changes nothing in TensorFlow or Keras, and imports neither: each
public name imports its module when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Tools do not run `__getattr__`. The tables below say the same.
    from tfdist.all_reduce.cost import Network
    from tfdist.all_reduce.cross_device_ops import AllReduce, RingAllReduce
    from tfdist.all_reduce.measure import measure_network
    from tfdist.checkpoint.fit_state import CheckpointMismatchError
    from tfdist.checkpoint.store import CheckpointDirError
    from tfdist.cluster.startup import StartupTimeoutError
    from tfdist.embedding.aggregated_lookup import (
        LookupBytesCounter,
        embedding_lookup_sparse_with_distributed_aggregation,
    )
    from tfdist.embedding.cost import LookupBytes
    from tfdist.embedding.layers import Embedding, EmbeddingBag
    from tfdist.liveness.peers import PeerLostError
    from tfdist.liveness.watchdog import StalledError
    from tfdist.local_update.strategy import LocalUpdateStrategy
    from tfdist.low_level.ending import report_done, serve_until_done
    from tfdist.low_level.startup import session_config, wait_until_ready
    from tfdist.low_level.sync_replicas import SyncReplicasOptimizer
    from tfdist.model_parallel.devices import Device, Link, Links
    from tfdist.model_parallel.errors import (
        DoesNotFitError,
        LayerGraphError,
        UnknownGraphError,
    )
    from tfdist.model_parallel.graph import LayerEdge, LayerGraph, LayerNode
    from tfdist.model_parallel.measured import measure_layers
    from tfdist.model_parallel.place import place_layers
    from tfdist.model_parallel.plan import LayerPlan
    from tfdist.parameter_server.caching.report import WhenChangedReport
    from tfdist.parameter_server.consistency.asynchronous import Asynchronous
    from tfdist.parameter_server.consistency.bounded_staleness import BoundedStaleness
    from tfdist.parameter_server.consistency.staleness import StalenessReport
    from tfdist.parameter_server.consistency.synchronous import Synchronous
    from tfdist.parameter_server.consistency_schedule import ConsistencySchedule
    from tfdist.parameter_server.exchange import Every, WhenChanged
    from tfdist.parameter_server.exchange_report import ExchangeReport
    from tfdist.parameter_server.fit.refusals import AsynchronousTrainingError
    from tfdist.parameter_server.strategy import ParameterServerStrategy
    from tfdist.pipeline.errors import PipelineError
    from tfdist.pipeline.strategy import PipelineStrategy
    from tfdist.placement.best_fit import BestFit
    from tfdist.placement.greedy import GreedyLoadBalancing, byte_size_load_fn
    from tfdist.placement.partition import Partition, PartitionError, Shard
    from tfdist.placement.partitioners import (
        FixedShardsPartitioner,
        MaxSizePartitioner,
        MinSizePartitioner,
        TargetSizePartitioner,
        fixed_size_partitioner,
    )
    from tfdist.placement.placement import Placement
    from tfdist.placement.report import (
        PlacedVariable,
        PlacementReport,
        WorkerReport,
    )
    from tfdist.placement.round_robin import RoundRobin
    from tfdist.placement.variable_spec import VariableSpec
    from tfdist.planning.arguments import UnknownSizesError
    from tfdist.planning.file import PlanFileError
    from tfdist.planning.model import plan
    from tfdist.planning.plan import Plan, PlannedVariable, Weight
    from tfdist.planning.planned import PlanMismatchError, Planned
    from tfdist.planning.planner import plan_variables
    from tfdist.planning.receipt import Receipt
    from tfdist.planning.suggest import ClusterSuggestion, suggest_cluster
    from tfdist.splitting.model import split_layers
    from tfdist.splitting.split import LayerMatrix, Split, SplitError
    from tfdist.synchronous.extended import UnequalDevicesError, UnequalModelError
    from tfdist.synchronous.fit.all_rows import whole_batch
    from tfdist.synchronous.fit.indivisible import IndivisibleLossError
    from tfdist.synchronous.fit.refusals import ScopeError, SynchronousTrainingError
    from tfdist.synchronous.fit.shares import UnequalDataError
    from tfdist.synchronous.multi_worker import MultiWorkerMirroredStrategy
    from tfdist.synchronous.ring import RingStrategy
    from tfdist.variables.creation import partition_variables
    from tfdist.variables.increment import NotAdditiveError

# The public names by module. These modules import without TensorFlow.
_PURE = {
    "tfdist.all_reduce.cost": ("Network",),
    "tfdist.checkpoint.store": ("CheckpointDirError",),
    "tfdist.cluster.startup": ("StartupTimeoutError",),
    "tfdist.embedding.cost": ("LookupBytes",),
    "tfdist.liveness.watchdog": ("StalledError",),
    "tfdist.model_parallel.devices": (
        "Device",
        "Link",
        "Links",
    ),
    "tfdist.model_parallel.errors": (
        "DoesNotFitError",
        "LayerGraphError",
        "UnknownGraphError",
    ),
    "tfdist.model_parallel.graph": (
        "LayerEdge",
        "LayerGraph",
        "LayerNode",
    ),
    "tfdist.model_parallel.place": ("place_layers",),
    "tfdist.model_parallel.plan": ("LayerPlan",),
    "tfdist.parameter_server.caching.report": ("WhenChangedReport",),
    "tfdist.parameter_server.consistency.asynchronous": ("Asynchronous",),
    "tfdist.parameter_server.consistency.bounded_staleness": ("BoundedStaleness",),
    "tfdist.parameter_server.consistency.synchronous": ("Synchronous",),
    "tfdist.parameter_server.consistency.staleness": ("StalenessReport",),
    "tfdist.parameter_server.exchange": ("Every", "WhenChanged"),
    "tfdist.parameter_server.exchange_report": ("ExchangeReport",),
    "tfdist.pipeline.errors": ("PipelineError",),
    "tfdist.placement.partition": (
        "Partition",
        "PartitionError",
        "Shard",
    ),
    "tfdist.placement.partitioners": (
        "FixedShardsPartitioner",
        "MaxSizePartitioner",
        "MinSizePartitioner",
        "TargetSizePartitioner",
        "fixed_size_partitioner",
    ),
    "tfdist.placement.best_fit": ("BestFit",),
    "tfdist.placement.greedy": ("GreedyLoadBalancing", "byte_size_load_fn"),
    "tfdist.placement.placement": ("Placement",),
    "tfdist.placement.round_robin": ("RoundRobin",),
    "tfdist.placement.variable_spec": ("VariableSpec",),
    "tfdist.placement.report": (
        "PlacedVariable",
        "PlacementReport",
        "WorkerReport",
    ),
    "tfdist.planning.arguments": ("UnknownSizesError",),
    "tfdist.planning.file": ("PlanFileError",),
    "tfdist.planning.plan": (
        "Plan",
        "PlannedVariable",
        "Weight",
    ),
    "tfdist.planning.planned": (
        "PlanMismatchError",
        "Planned",
    ),
    "tfdist.planning.planner": ("plan_variables",),
    "tfdist.planning.receipt": ("Receipt",),
    "tfdist.planning.suggest": (
        "ClusterSuggestion",
        "suggest_cluster",
    ),
    "tfdist.splitting.split": (
        "LayerMatrix",
        "Split",
        "SplitError",
    ),
}

# These need TensorFlow, and the version that `_requires` checks for.
_ON_TENSORFLOW = {
    "tfdist.all_reduce.cross_device_ops": (
        "AllReduce",
        "RingAllReduce",
    ),
    "tfdist.all_reduce.measure": ("measure_network",),
    "tfdist.checkpoint.fit_state": ("CheckpointMismatchError",),
    "tfdist.embedding.aggregated_lookup": (
        "LookupBytesCounter",
        "embedding_lookup_sparse_with_distributed_aggregation",
    ),
    "tfdist.embedding.layers": (
        "Embedding",
        "EmbeddingBag",
    ),
    "tfdist.liveness.peers": ("PeerLostError",),
    "tfdist.local_update.strategy": ("LocalUpdateStrategy",),
    "tfdist.low_level.ending": (
        "report_done",
        "serve_until_done",
    ),
    "tfdist.low_level.startup": (
        "session_config",
        "wait_until_ready",
    ),
    "tfdist.low_level.sync_replicas": ("SyncReplicasOptimizer",),
    "tfdist.model_parallel.measured": ("measure_layers",),
    "tfdist.parameter_server.consistency_schedule": ("ConsistencySchedule",),
    "tfdist.parameter_server.fit.refusals": ("AsynchronousTrainingError",),
    "tfdist.parameter_server.strategy": ("ParameterServerStrategy",),
    "tfdist.pipeline.strategy": ("PipelineStrategy",),
    "tfdist.planning.model": ("plan",),
    "tfdist.splitting.model": ("split_layers",),
    "tfdist.synchronous.extended": (
        "UnequalDevicesError",
        "UnequalModelError",
    ),
    "tfdist.synchronous.fit.all_rows": ("whole_batch",),
    "tfdist.synchronous.fit.shares": ("UnequalDataError",),
    "tfdist.synchronous.fit.indivisible": ("IndivisibleLossError",),
    "tfdist.synchronous.fit.refusals": (
        "ScopeError",
        "SynchronousTrainingError",
    ),
    "tfdist.synchronous.multi_worker": ("MultiWorkerMirroredStrategy",),
    "tfdist.synchronous.ring": ("RingStrategy",),
    "tfdist.variables.creation": ("partition_variables",),
    "tfdist.variables.increment": ("NotAdditiveError",),
}

_MODULES = {
    name: module
    for modules in (_PURE, _ON_TENSORFLOW)
    for module, names in modules.items()
    for name in names
}

__all__ = [
    "AllReduce",
    "Asynchronous",
    "AsynchronousTrainingError",
    "BestFit",
    "BoundedStaleness",
    "CheckpointDirError",
    "CheckpointMismatchError",
    "ClusterSuggestion",
    "ConsistencySchedule",
    "Device",
    "DoesNotFitError",
    "Embedding",
    "EmbeddingBag",
    "Every",
    "ExchangeReport",
    "FixedShardsPartitioner",
    "GreedyLoadBalancing",
    "IndivisibleLossError",
    "LayerEdge",
    "LayerGraph",
    "LayerGraphError",
    "LayerMatrix",
    "LayerNode",
    "LayerPlan",
    "Link",
    "Links",
    "LocalUpdateStrategy",
    "LookupBytes",
    "LookupBytesCounter",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "MultiWorkerMirroredStrategy",
    "Network",
    "NotAdditiveError",
    "ParameterServerStrategy",
    "Partition",
    "PartitionError",
    "PeerLostError",
    "PipelineError",
    "PipelineStrategy",
    "PlacedVariable",
    "Placement",
    "PlacementReport",
    "Plan",
    "PlanFileError",
    "PlanMismatchError",
    "Planned",
    "PlannedVariable",
    "Receipt",
    "RingAllReduce",
    "RingStrategy",
    "RoundRobin",
    "ScopeError",
    "Shard",
    "Split",
    "SplitError",
    "StalenessReport",
    "StalledError",
    "StartupTimeoutError",
    "SyncReplicasOptimizer",
    "Synchronous",
    "SynchronousTrainingError",
    "TargetSizePartitioner",
    "UnequalDataError",
    "UnequalDevicesError",
    "UnequalModelError",
    "UnknownGraphError",
    "UnknownSizesError",
    "VariableSpec",
    "Weight",
    "WhenChanged",
    "WhenChangedReport",
    "WorkerReport",
    "byte_size_load_fn",
    "embedding_lookup_sparse_with_distributed_aggregation",
    "fixed_size_partitioner",
    "measure_layers",
    "measure_network",
    "partition_variables",
    "place_layers",
    "plan",
    "plan_variables",
    "report_done",
    "serve_until_done",
    "session_config",
    "split_layers",
    "suggest_cluster",
    "wait_until_ready",
    "whole_batch",
]


# Packages that are there without an import of their own, as in an eager `__init__`.
_PACKAGES = (
    "all_reduce",
    "data",
    "embedding",
    "federated",
    "low_level",
    "mixing",
    "model_parallel",
    "placement",
    "planning",
)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"tfdist.{name}")
    if name not in _MODULES:
        raise AttributeError(_no_attribute(name), name=name)
    module = _MODULES[name]
    if module in _ON_TENSORFLOW:
        # An older TensorFlow fails on a private import otherwise, without the reason.
        importlib.import_module("tfdist._requires")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value  # Python finds it without this function from now on.
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _no_attribute(name: str) -> str:
    message = f"module 'tfdist' has no attribute {name!r}"
    if name.startswith("_"):
        return message  # Python itself asks for some of these, and shows no message.
    from difflib import get_close_matches

    near = get_close_matches(name, __all__)
    return f"{message}. Did you mean: {', '.join(near)}?" if near else message
