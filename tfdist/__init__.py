"""Distribution strategies for TensorFlow and Keras 3.

Importing this package changes nothing in TensorFlow or Keras.
"""

from tfdist import _requires  # noqa: F401  It comes first: the others would fail.
from tfdist.all_reduce.cost import Network
from tfdist.all_reduce.cross_device_ops import AllReduce, RingAllReduce
from tfdist.all_reduce.measure import measure_network
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
from tfdist.low_level.ending import report_done, serve_until_done
from tfdist.low_level.startup import session_config, wait_until_ready
from tfdist.low_level.sync_replicas import SyncReplicasOptimizer
from tfdist.parameter_server.fit.refusals import AsynchronousTrainingError
from tfdist.parameter_server.fit.resume import CheckpointMismatchError
from tfdist.parameter_server.strategy import ParameterServerStrategy
from tfdist.placement.partition import Partition, PartitionError, Shard
from tfdist.placement.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    TargetSizePartitioner,
    fixed_size_partitioner,
)
from tfdist.placement.placement import (
    GreedyLoadBalancing,
    Placement,
    RoundRobin,
    VariableSpec,
    byte_size_load_fn,
)
from tfdist.placement.report import (
    PlacedVariable,
    PlacementReport,
    WorkerReport,
)
from tfdist.planning.file import PlanFileError
from tfdist.planning.model import plan
from tfdist.planning.plan import Plan, PlannedVariable, Weight
from tfdist.planning.planned import PlanMismatchError, Planned
from tfdist.planning.planner import plan_variables
from tfdist.planning.receipt import Receipt
from tfdist.planning.sizes import UnknownSizesError
from tfdist.planning.suggest import ClusterSuggestion, suggest_cluster
from tfdist.synchronous.extended import UnequalDevicesError, UnequalModelError
from tfdist.synchronous.fit.input import UnequalDataError
from tfdist.synchronous.fit.loss_kind import IndivisibleLossError
from tfdist.synchronous.fit.refusals import ScopeError, SynchronousTrainingError
from tfdist.synchronous.multi_worker import MultiWorkerMirroredStrategy
from tfdist.synchronous.ring import RingStrategy
from tfdist.variables.creation import partition_variables
from tfdist.variables.increment import NotAdditiveError

__all__ = [
    "AllReduce",
    "AsynchronousTrainingError",
    "CheckpointDirError",
    "CheckpointMismatchError",
    "ClusterSuggestion",
    "Embedding",
    "EmbeddingBag",
    "FixedShardsPartitioner",
    "GreedyLoadBalancing",
    "IndivisibleLossError",
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
    "StalledError",
    "StartupTimeoutError",
    "SyncReplicasOptimizer",
    "SynchronousTrainingError",
    "TargetSizePartitioner",
    "UnequalDataError",
    "UnequalDevicesError",
    "UnequalModelError",
    "UnknownSizesError",
    "VariableSpec",
    "Weight",
    "WorkerReport",
    "byte_size_load_fn",
    "embedding_lookup_sparse_with_distributed_aggregation",
    "fixed_size_partitioner",
    "measure_network",
    "partition_variables",
    "plan",
    "plan_variables",
    "report_done",
    "serve_until_done",
    "session_config",
    "suggest_cluster",
    "wait_until_ready",
]
