"""How fast gossip brings models together: simulated, and predicted by the spectral gap."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfdist import mixing
from tfdist.mixing import Topology

SIMULATED = ("ring", "torus", "exponential", "star")
REAL = ("ring", "exponential", "star")
PARTICIPANTS = (16, 32, 64)
# The slowest part of the distance is alone where the others have died out, and above
# what rounding leaves.
_FROM, _UNTIL = 1e-6, 1e-11
# Real models are float32.
_UNTIL_FLOAT32 = 1e-5


def distances(models: Sequence[np.ndarray]) -> list[float]:
    """Returns the distance of all models from their mean, after each round.

    Args:
        models: One array per round: a row per participant.
    """
    return [float(np.linalg.norm(each - each.mean(axis=0))) for each in models]


def distances_of_files(directory: str, workers: int) -> list[float]:
    """Returns the distances of models that workers have written, a file per worker."""
    found = [np.load(Path(directory, f"{each}.npy")) for each in range(workers)]
    return distances(np.stack(found, axis=1).astype(np.float64))


def mixed(topology: Topology, size: int = 100, seed: int = 0) -> list[float]:
    """Mixes random models until they agree; returns their distance after each round."""
    participants = len(topology.participants)
    models = np.random.default_rng(seed).normal(size=(participants, size))
    found = distances([models])
    for round_index in range(topology.rounds_to_shrink(_UNTIL)):
        models = topology.matrix(round_index) @ models
        found += distances([models])
    return found


def fitted_factor(
    found: Sequence[float], begin: float = _FROM, end: float = _UNTIL
) -> float:
    """Returns by which factor the distance shrinks per round: a line through its logs.

    Args:
        found: The distance after each round.
        begin: Fit where the distance is at most this part of the first one.
        end: And at least this part.
    """
    rounds = [i for i, d in enumerate(found) if end <= d / found[0] <= begin]
    logs = [math.log(found[i]) for i in rounds]
    return math.exp(np.polyfit(rounds, logs, 1)[0])


def fitted_factor_of_workers(found: Sequence[float]) -> float:
    """Returns the same of real workers, whose models are float32."""
    return fitted_factor(found, 0.5, _UNTIL_FLOAT32)


def simulated() -> list[dict[str, float | int | str]]:
    """Returns the fitted and the predicted factor of each graph, by its participants."""
    rows: list[dict[str, float | int | str]] = []
    for name in SIMULATED:
        for participants in PARTICIPANTS:
            topology = getattr(mixing, name)(participants)
            rows.append(
                {
                    "topology": name,
                    "participants": participants,
                    "fitted": fitted_factor(mixed(topology)),
                    "predicted": topology.second_eigenvalue,
                }
            )
    return rows
