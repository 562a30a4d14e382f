"""The public names of tfdist, and the module that defines each.

This is the only list of them. Type checkers and editors read it as any stub, and
`__init__.py` reads it to import a name when it is first used.
"""

from tfdist import all_reduce as all_reduce
from tfdist import data as data
from tfdist import embedding as embedding
from tfdist import errors as errors
from tfdist import low_level as low_level
from tfdist import placement as placement
from tfdist import planning as planning
from tfdist import research as research
from tfdist._support.errors import Error as Error
from tfdist.all_reduce.cross_device_ops import AllReduce as AllReduce
from tfdist.all_reduce.cross_device_ops import RingAllReduce as RingAllReduce
from tfdist.cluster.settings import Checkpoints as Checkpoints
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
from tfdist.keras.tensorboard import TensorBoard as TensorBoard
from tfdist.local_update import mixing as mixing
from tfdist.local_update.strategy import LocalUpdateStrategy as LocalUpdateStrategy
from tfdist.parameter_server.caching.report import (
    WhenChangedReport as WhenChangedReport,
)
from tfdist.parameter_server.consistency_schedule import (
    ConsistencySchedule as ConsistencySchedule,
)
from tfdist.parameter_server.exchange.policies import ExchangeEvery as ExchangeEvery
from tfdist.parameter_server.exchange.policies import WhenChanged as WhenChanged
from tfdist.parameter_server.exchange.report import ExchangeReport as ExchangeReport
from tfdist.parameter_server.strategy import (
    ParameterServerStrategy as ParameterServerStrategy,
)
from tfdist.placement.greedy import BestFit as BestFit
from tfdist.placement.greedy import GreedyLoadBalancing as GreedyLoadBalancing
from tfdist.placement.greedy import byte_size_load_fn as byte_size_load_fn
from tfdist.placement.partition import Partition as Partition
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
from tfdist.planning.model import plan as plan
from tfdist.strategies import strategy as strategy
from tfdist.synchronous.multi_worker import (
    MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
)
from tfdist.synchronous.replica.all_rows import whole_batch as whole_batch
from tfdist.synchronous.ring import RingStrategy as RingStrategy
from tfdist.variables.creation import partition_variables as partition_variables

__version__: str
