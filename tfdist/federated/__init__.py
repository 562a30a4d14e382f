"""Federated learning: algorithm, server and clients; splits, rules, attacks, noise.

Data never leaves a client: it trains on its own examples, and the server makes one update
of those of a round. All but the training itself is pure: numpy is all it needs, but for
epsilon, which comes from `dp-accounting`. The names of `execution` import TensorFlow when
they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfdist.federated.aggregation import Aggregation, NormClipping, WeightedMean
from tfdist.federated.attacks import (
    ALittleIsEnough,
    Attack,
    Backdoor,
    ScaledUpdate,
    SignFlip,
    label_flip,
)
from tfdist.federated.averaging import FederatedAveraging
from tfdist.federated.client_behavior import ClientBehavior
from tfdist.federated.client_update import ClientUpdate
from tfdist.federated.feature_shifts import brighter, rotated
from tfdist.federated.privacy import GaussianMechanism
from tfdist.federated.robust import (
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    TrimmedMean,
)
from tfdist.federated.sampling import ClientSampling, FixedSampling, PoissonSampling
from tfdist.federated.server import Server
from tfdist.federated.server_optimizers import (
    FedAdam,
    FedAvgM,
    ServerOptimizer,
    ServerState,
)
from tfdist.federated.splits import counts, dirichlet, iid, label_shards, unequal
from tfdist.federated.view import plot, table

if TYPE_CHECKING:  # Tools do not run `__getattr__`.
    from tfdist.federated.execution.client_training import ClientTraining
    from tfdist.federated.execution.simulation import Simulation
    from tfdist.federated.execution.workers import Workers

_ON_TENSORFLOW = {
    "ClientTraining": "tfdist.federated.execution.client_training",
    "Simulation": "tfdist.federated.execution.simulation",
    "Workers": "tfdist.federated.execution.workers",
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
