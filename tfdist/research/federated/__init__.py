"""Federated learning: algorithm, server and clients; splits, rules, attacks, noise.

Data never leaves a client: it trains on its own examples, and the server makes one update
of those of a round. All but the training itself is pure: numpy is all it needs, but for
epsilon, which comes from `dp-accounting`. The names of `execution` import TensorFlow when
they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfdist.research.federated.aggregation import (
    Aggregation,
    NormClipping,
    WeightedMean,
)
from tfdist.research.federated.attacks import (
    ALittleIsEnough,
    Attack,
    Backdoor,
    ScaledUpdate,
    SignFlip,
    label_flip,
)
from tfdist.research.federated.averaging import FederatedAveraging
from tfdist.research.federated.client_behavior import ClientBehavior
from tfdist.research.federated.client_update import ClientUpdate
from tfdist.research.federated.feature_shifts import brighter, rotated
from tfdist.research.federated.privacy import GaussianMechanism
from tfdist.research.federated.robust import (
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    TrimmedMean,
)
from tfdist.research.federated.sampling import (
    ClientSampling,
    FixedSampling,
    PoissonSampling,
)
from tfdist.research.federated.server import Server
from tfdist.research.federated.server_optimizers import (
    FedAdam,
    FedAvgM,
    ServerOptimizer,
    ServerState,
)
from tfdist.research.federated.splits import (
    counts,
    dirichlet,
    iid,
    label_shards,
    unequal,
)
from tfdist.research.federated.view import plot, table

if TYPE_CHECKING:  # Tools do not run `__getattr__`.
    from tfdist.research.federated.execution.client_training import ClientTraining
    from tfdist.research.federated.execution.simulation import Simulation
    from tfdist.research.federated.execution.workers import Workers

_ON_TENSORFLOW = {
    "ClientTraining": "tfdist.research.federated.execution.client_training",
    "Simulation": "tfdist.research.federated.execution.simulation",
    "Workers": "tfdist.research.federated.execution.workers",
}

__all__ = [
    "ALittleIsEnough",
    "Aggregation",
    "Attack",
    "Backdoor",
    "ClientBehavior",
    "ClientSampling",
    "ClientTraining",
    "ClientUpdate",
    "FedAdam",
    "FedAvgM",
    "FederatedAveraging",
    "FixedSampling",
    "GaussianMechanism",
    "GeometricMedian",
    "Krum",
    "Median",
    "MultiKrum",
    "NormClipping",
    "PoissonSampling",
    "ScaledUpdate",
    "Server",
    "ServerOptimizer",
    "ServerState",
    "SignFlip",
    "Simulation",
    "TrimmedMean",
    "WeightedMean",
    "Workers",
    "brighter",
    "counts",
    "dirichlet",
    "iid",
    "label_flip",
    "label_shards",
    "plot",
    "rotated",
    "table",
    "unequal",
]


def __getattr__(name: str) -> Any:
    if name not in _ON_TENSORFLOW:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name
        )
    # An older TensorFlow fails without the reason otherwise.
    importlib.import_module("tfdist._support.requires")
    value = getattr(importlib.import_module(_ON_TENSORFLOW[name]), name)
    globals()[name] = value  # Python finds it without this function from now on.
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
