"""Rounds: the gradients of several workers make one update. Pure."""

from dataclasses import dataclass, replace

from tfdist.consistency.numbers import count_of
from tfdist.consistency.policy import Gradient, State, Step


@dataclass(frozen=True)
class Synchronous:
    """Averages the gradients of several workers, computed from the same weights.

    The average of a round makes one step of the optimizer, next to the weights on the ps;
    without backup workers, that is the step of one process on a batch that is as many times
    as large.

    With `backup_workers`, all workers start a step in each round, and the first gradients
    count. A late one is dropped by its round's number, on every ps, and its worker joins the
    current round (J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016,
    arXiv:1604.00981, section 4). A worker computes one gradient per round, or more if those
    in flight are too few to complete it, as at the end of an epoch.

    The batch of a dropped gradient has been handed out, and is not learned from: each batch
    of an epoch is handed out once, and an epoch has fewer updates. The logs of an epoch have
    the number of gradients that were `dropped`. The metrics have all batches.

    Cost: a step moves what an asynchronous one moves; the round takes as long as the
    slowest of the workers that count. With backup workers, a step asks one ps before it
    reads from and writes to the others, and each message to a worker has one step.

    Args:
        backup_workers: How many of the workers a round does not wait for.
        replicas_to_aggregate: How many gradients make an update. By default, those of all
            workers but the backups.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If it is out of range.
    """

    backup_workers: int = 0
    replicas_to_aggregate: int | None = None

    def __post_init__(self) -> None:
        owner = "Synchronous"
        backups = count_of(owner, "backup_workers", self.backup_workers, least=0)
        object.__setattr__(self, "backup_workers", backups)
        if self.replicas_to_aggregate is not None:
            enough = self.replicas_to_aggregate
            enough = count_of(owner, "replicas_to_aggregate", enough, least=1)
            object.__setattr__(self, "replicas_to_aggregate", enough)

    def for_workers(self, num_workers: int) -> "Synchronous":
        """Returns the policy with its numbers for a cluster.

        Raises:
            ValueError: If the cluster has too few workers.
        """
        backups = self.backup_workers
        if backups >= num_workers:
            raise ValueError(
                f"backup_workers={backups} leaves no worker of {num_workers} whose "
                f"gradient counts; it can be at most {num_workers - 1}"
            )
        enough = self.replicas_to_aggregate
        if enough is None:
            enough = num_workers - backups
        if enough + backups > num_workers:
            raise ValueError(
                f"a round of replicas_to_aggregate={enough} gradients and "
                f"backup_workers={backups} needs {enough + backups} workers, and the "
                f"cluster has {num_workers}: a worker computes one gradient per round"
            )
        return replace(self, replicas_to_aggregate=enough)

    def may_start(self, step: Step, state: State) -> bool:
        """Returns True if the worker has not computed a gradient of this round yet."""
        return step.worker not in state.aggregated

    def counts(self, gradient: Gradient, state: State) -> bool:
        """Returns True if it was computed from the current weights."""
        return gradient.round == state.round
