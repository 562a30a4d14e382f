"""The errors of tfdist, and the module that defines each."""

from tfdist._support.errors import Error as Error
from tfdist.all_reduce.cost import CostError as CostError
from tfdist.all_reduce.schedule import ScheduleError as ScheduleError
from tfdist.checkpoint.fit_state import (
    CheckpointMismatchError as CheckpointMismatchError,
)
from tfdist.checkpoint.store import CheckpointDirError as CheckpointDirError
from tfdist.checkpoint.store import CorruptCheckpointError as CorruptCheckpointError
from tfdist.cluster.liveness.peers import PeerLostError as PeerLostError
from tfdist.cluster.liveness.watchdog import StalledError as StalledError
from tfdist.cluster.lost_variables import LostVariablesError as LostVariablesError
from tfdist.cluster.startup import StartupTimeoutError as StartupTimeoutError
from tfdist.data.errors import SourceError as SourceError
from tfdist.embedding.growing.chain import ChainError as ChainError
from tfdist.keras.refused import ScopeError as ScopeError
from tfdist.keras.saving import OvertakenError as OvertakenError
from tfdist.keras.step_writes import LostWritesError as LostWritesError
from tfdist.local_update.messenger import GivenUpError as GivenUpError
from tfdist.local_update.messenger import OutOfStepError as OutOfStepError
from tfdist.local_update.messenger import TooFewWorkersError as TooFewWorkersError
from tfdist.local_update.rejoin import RejoinError as RejoinError
from tfdist.parameter_server.rounds.computation import RoundError as RoundError
from tfdist.parameter_server.steps.refusals import (
    AsynchronousTrainingError as AsynchronousTrainingError,
)
from tfdist.peers.agreement import UnequalModelError as UnequalModelError
from tfdist.peers.calls import LoneCallError as LoneCallError
from tfdist.peers.shares import UnequalDataError as UnequalDataError
from tfdist.placement.partition import PartitionError as PartitionError
from tfdist.planning.arguments import NotAModelError as NotAModelError
from tfdist.planning.arguments import UnknownSizesError as UnknownSizesError
from tfdist.planning.file import PlanFileError as PlanFileError
from tfdist.planning.planned import PlanMismatchError as PlanMismatchError
from tfdist.synchronous.devices import UnequalDevicesError as UnequalDevicesError
from tfdist.synchronous.fit.refusals import (
    SynchronousTrainingError as SynchronousTrainingError,
)
from tfdist.synchronous.reader.indivisible import (
    IndivisibleLossError as IndivisibleLossError,
)
from tfdist.synchronous.replica.step import NestedFunctionError as NestedFunctionError
from tfdist.variables.increment import NotAdditiveError as NotAdditiveError
from tfdist.variables.reserved_rows import ReservedRowsError as ReservedRowsError
