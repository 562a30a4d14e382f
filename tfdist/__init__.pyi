"""The public names of tfdist, and the module that defines each.

This is the only list of them. Type checkers and editors read it as any stub, and
`__init__.py` reads it to import a name when it is first used.
"""

from tfdist import all_reduce as all_reduce
from tfdist import data as data
from tfdist import embedding as embedding
from tfdist import low_level as low_level
from tfdist import placement as placement
from tfdist import planning as planning
from tfdist import research as research
from tfdist.all_reduce.cross_device_ops import AllReduce as AllReduce
from tfdist.all_reduce.cross_device_ops import RingAllReduce as RingAllReduce
from tfdist.checkpoint.fit_state import (
    CheckpointMismatchError as CheckpointMismatchError,
)
from tfdist.checkpoint.store import CheckpointDirError as CheckpointDirError
from tfdist.cluster.liveness.peers import PeerLostError as PeerLostError
from tfdist.cluster.liveness.watchdog import StalledError as StalledError
from tfdist.cluster.lost_variables import LostVariablesError as LostVariablesError
from tfdist.cluster.startup import StartupTimeoutError as StartupTimeoutError
from tfdist.consistency.asynchronous import (
    Asynchronous as Asynchronous,
)
from tfdist.consistency.bounded_staleness import (
    BoundedStaleness as BoundedStaleness,
)
from tfdist.consistency.staleness import (
    StalenessReport as StalenessReport,
)
from tfdist.consistency.synchronous import Synchronous as Synchronous
from tfdist.embedding.aggregated_lookup import LookupBytesCounter as LookupBytesCounter
from tfdist.embedding.cost import LookupBytes as LookupBytes
from tfdist.embedding.growing.admission import CountFilter as CountFilter
from tfdist.embedding.growing.admission import ProbabilityFilter as ProbabilityFilter
from tfdist.embedding.growing.chain import read_export as read_export
from tfdist.embedding.growing.delta_export import DeltaExport as DeltaExport
from tfdist.embedding.growing.evict_rows import EvictRows as EvictRows
from tfdist.embedding.growing.eviction import EvictRare as EvictRare
from tfdist.embedding.growing.eviction import EvictSmall as EvictSmall
from tfdist.embedding.growing.eviction import EvictUnseen as EvictUnseen
from tfdist.embedding.growing.frozen import frozen as frozen
from tfdist.embedding.growing.layers import DynamicEmbedding as DynamicEmbedding
from tfdist.embedding.growing.layers import DynamicEmbeddingBag as DynamicEmbeddingBag
from tfdist.embedding.layers import Embedding as Embedding
from tfdist.embedding.layers import EmbeddingBag as EmbeddingBag
from tfdist.local_update import mixing as mixing
from tfdist.local_update.strategy import LocalUpdateStrategy as LocalUpdateStrategy
from tfdist.low_level.ending import report_done as report_done
from tfdist.low_level.ending import serve_until_done as serve_until_done
from tfdist.low_level.startup import session_config as session_config
from tfdist.low_level.startup import wait_until_ready as wait_until_ready
from tfdist.low_level.sync_replicas import (
    SyncReplicasOptimizer as SyncReplicasOptimizer,
)
from tfdist.parameter_server.caching.report import (
    WhenChangedReport as WhenChangedReport,
)
from tfdist.parameter_server.consistency_schedule import (
    ConsistencySchedule as ConsistencySchedule,
)
from tfdist.parameter_server.exchange.policies import Every as Every
from tfdist.parameter_server.exchange.policies import WhenChanged as WhenChanged
from tfdist.parameter_server.exchange.report import ExchangeReport as ExchangeReport
from tfdist.parameter_server.steps.refusals import (
    AsynchronousTrainingError as AsynchronousTrainingError,
)
from tfdist.parameter_server.strategy import (
    ParameterServerStrategy as ParameterServerStrategy,
)
from tfdist.peers.agreement import UnequalModelError as UnequalModelError
from tfdist.peers.calls import LoneCallError as LoneCallError
from tfdist.peers.shares import UnequalDataError as UnequalDataError
from tfdist.placement.greedy import BestFit as BestFit
from tfdist.placement.greedy import GreedyLoadBalancing as GreedyLoadBalancing
from tfdist.placement.greedy import byte_size_load_fn as byte_size_load_fn
from tfdist.placement.partition import Partition as Partition
from tfdist.placement.partition import PartitionError as PartitionError
from tfdist.placement.partition import Shard as Shard
from tfdist.placement.partitioners import (
    FixedShardsPartitioner as FixedShardsPartitioner,
)
from tfdist.placement.partitioners import MaxSizePartitioner as MaxSizePartitioner
from tfdist.placement.partitioners import MinSizePartitioner as MinSizePartitioner
from tfdist.placement.partitioners import TargetSizePartitioner as TargetSizePartitioner
from tfdist.placement.partitioners import (
    fixed_size_partitioner as fixed_size_partitioner,
)
from tfdist.placement.placement import Placement as Placement
from tfdist.placement.placement import RoundRobin as RoundRobin
from tfdist.placement.report import PlacedVariable as PlacedVariable
from tfdist.placement.report import PlacementReport as PlacementReport
from tfdist.placement.report import WorkerReport as WorkerReport
from tfdist.placement.variable_spec import VariableSpec as VariableSpec
from tfdist.planning.arguments import UnknownSizesError as UnknownSizesError
from tfdist.planning.file import PlanFileError as PlanFileError
from tfdist.planning.model import plan as plan
from tfdist.planning.plan import Plan as Plan
from tfdist.planning.plan import Receipt as Receipt
from tfdist.planning.planned import PlanMismatchError as PlanMismatchError
from tfdist.planning.planned import Planned as Planned
from tfdist.planning.planner import plan_variables as plan_variables
from tfdist.planning.weight import PlannedVariable as PlannedVariable
from tfdist.planning.weight import Weight as Weight
from tfdist.synchronous.devices import UnequalDevicesError as UnequalDevicesError
from tfdist.synchronous.fit.refusals import ScopeError as ScopeError
from tfdist.synchronous.fit.refusals import (
    SynchronousTrainingError as SynchronousTrainingError,
)
from tfdist.synchronous.multi_worker import (
    MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
)
from tfdist.synchronous.reader.indivisible import (
    IndivisibleLossError as IndivisibleLossError,
)
from tfdist.synchronous.replica.all_rows import whole_batch as whole_batch
from tfdist.synchronous.ring import RingStrategy as RingStrategy
from tfdist.variables.creation import partition_variables as partition_variables
from tfdist.variables.increment import NotAdditiveError as NotAdditiveError

# As one line, it would be too long.
# isort: off
# fmt: off
from tfdist.embedding.aggregated_lookup import (
    embedding_lookup_sparse_with_distributed_aggregation
    as embedding_lookup_sparse_with_distributed_aggregation,
)

__version__: str
