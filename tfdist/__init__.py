"""Distribution strategies for TensorFlow and Keras 3.

Importing this package changes nothing in TensorFlow or Keras.
"""

from tfdist import _requires  # noqa: F401  It comes first: the others would fail.
from tfdist.all_reduce.cost import Network
from tfdist.all_reduce.cross_device_ops import AllReduce, RingAllReduce
from tfdist.all_reduce.measure import measure_network
from tfdist.checkpoint.store import CheckpointDirError
from tfdist.connect import StartupTimeoutError
from tfdist.embedding.aggregated_lookup import (
    LookupBytesCounter,
    embedding_lookup_sparse_with_distributed_aggregation,
)
from tfdist.embedding.cost import LookupBytes
from tfdist.embedding.layers import Embedding, EmbeddingBag
from tfdist.keras.checks import AsynchronousTrainingError
from tfdist.keras.loss_kind import IndivisibleLossError
from tfdist.keras.multi_worker_checks import ScopeError, SynchronousTrainingError
from tfdist.keras.multi_worker_input import UnequalDataError
from tfdist.keras.resume import CheckpointMismatchError
from tfdist.low_level.ending import report_done, serve_until_done
from tfdist.low_level.startup import session_config, wait_until_ready
from tfdist.low_level.sync_replicas import SyncReplicasOptimizer
from tfdist.multi_worker.extended import UnequalDevicesError, UnequalModelError
from tfdist.multi_worker.peers import PeerLostError
from tfdist.multi_worker.ring import RingStrategy
from tfdist.multi_worker.strategy import MultiWorkerMirroredStrategy
from tfdist.parameter_server.creation import partition_variables
from tfdist.parameter_server.increment import NotAdditiveError
from tfdist.parameter_server.partition import Partition, PartitionError, Shard
from tfdist.parameter_server.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    TargetSizePartitioner,
    fixed_size_partitioner,
)
from tfdist.parameter_server.placement import (
    GreedyLoadBalancing,
    Placement,
    RoundRobin,
    VariableSpec,
    byte_size_load_fn,
)
from tfdist.parameter_server.plan import Plan, PlannedVariable, Weight
from tfdist.parameter_server.plan_file import PlanFileError
from tfdist.parameter_server.plan_model import plan
from tfdist.parameter_server.planned import PlanMismatchError, Planned
from tfdist.parameter_server.planner import plan_variables
from tfdist.parameter_server.receipt import Receipt
from tfdist.parameter_server.report import (
    PlacedVariable,
    PlacementReport,
    WorkerReport,
)
from tfdist.parameter_server.sizes import UnknownSizesError
from tfdist.parameter_server.strategy import ParameterServerStrategy
from tfdist.parameter_server.suggest import ClusterSuggestion, suggest_cluster
from tfdist.watchdog import StalledError

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
