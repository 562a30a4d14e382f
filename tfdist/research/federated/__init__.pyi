"""The public names of tfdist.research.federated, and the module that defines each."""

from tfdist.research.federated.aggregation import Aggregation as Aggregation
from tfdist.research.federated.aggregation import NormClipping as NormClipping
from tfdist.research.federated.aggregation import WeightedMean as WeightedMean
from tfdist.research.federated.attacks import ALittleIsEnough as ALittleIsEnough
from tfdist.research.federated.attacks import Attack as Attack
from tfdist.research.federated.attacks import Backdoor as Backdoor
from tfdist.research.federated.attacks import ScaledUpdate as ScaledUpdate
from tfdist.research.federated.attacks import SignFlip as SignFlip
from tfdist.research.federated.attacks import label_flip as label_flip
from tfdist.research.federated.averaging import FederatedAveraging as FederatedAveraging
from tfdist.research.federated.client_behavior import ClientBehavior as ClientBehavior
from tfdist.research.federated.client_update import ClientUpdate as ClientUpdate
from tfdist.research.federated.execution.client_training import (
    ClientTraining as ClientTraining,
)
from tfdist.research.federated.execution.simulation import Simulation as Simulation
from tfdist.research.federated.execution.workers import Workers as Workers
from tfdist.research.federated.feature_shifts import brighter as brighter
from tfdist.research.federated.feature_shifts import rotated as rotated
from tfdist.research.federated.privacy import GaussianMechanism as GaussianMechanism
from tfdist.research.federated.robust import GeometricMedian as GeometricMedian
from tfdist.research.federated.robust import Krum as Krum
from tfdist.research.federated.robust import Median as Median
from tfdist.research.federated.robust import MultiKrum as MultiKrum
from tfdist.research.federated.robust import TrimmedMean as TrimmedMean
from tfdist.research.federated.sampling import ClientSampling as ClientSampling
from tfdist.research.federated.sampling import FixedSampling as FixedSampling
from tfdist.research.federated.sampling import PoissonSampling as PoissonSampling
from tfdist.research.federated.server import Server as Server
from tfdist.research.federated.server_optimizers import FedAdam as FedAdam
from tfdist.research.federated.server_optimizers import FedAvgM as FedAvgM
from tfdist.research.federated.server_optimizers import (
    ServerOptimizer as ServerOptimizer,
)
from tfdist.research.federated.server_optimizers import ServerState as ServerState
from tfdist.research.federated.splits import counts as counts
from tfdist.research.federated.splits import dirichlet as dirichlet
from tfdist.research.federated.splits import iid as iid
from tfdist.research.federated.splits import label_shards as label_shards
from tfdist.research.federated.splits import unequal as unequal
from tfdist.research.federated.view import plot as plot
from tfdist.research.federated.view import table as table
