"""Matrices whose rows and columns sum to one: weights that keep the mean."""

from collections.abc import Iterable, Sequence

import numpy as np

TOLERANCE = 1e-9  # of the sum of a row
ZERO = 1e-12  # what rounding may leave of a weight of zero


def check(matrix: np.ndarray) -> None:
    """Checks that a step with these weights keeps the mean.

    Raises:
        ValueError: If the matrix is not square, has a weight that is negative or not
            finite, or a row or a column that does not sum to one.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(
            "a matrix of weights has one row and one column per participant; received "
            f"shape {matrix.shape}"
        )
    if not (np.isfinite(matrix) & (matrix >= 0)).all():
        row, column = np.argwhere(~(np.isfinite(matrix) & (matrix >= 0)))[0]
        raise ValueError(
            "weights must be at least 0 and finite; received "
            f"{matrix[row, column]:g} in row {row}, column {column}"
        )
    for what, sums in (("row", matrix.sum(axis=1)), ("column", matrix.sum(axis=0))):
        worst = int(np.abs(sums - 1).argmax())
        if abs(sums[worst] - 1) > TOLERANCE:
            raise ValueError(
                "a matrix of weights is doubly stochastic: each row and each column sums "
                f"to 1; received {what} {worst}, which sums to {sums[worst]:.12g}. "
                "tfdist.mixing.from_edges computes such weights for a graph"
            )


def metropolis_hastings(
    participants: int, edges: Iterable[tuple[int, int]]
) -> np.ndarray:
    """Returns symmetric weights for the edges of any undirected graph.

    The weight of an edge is 1 / (1 + the larger degree of its ends), and the rest of each
    row is its participant's own. In a regular graph of degree d that is 1 / (d + 1) for
    all. Each participant needs its neighbours' degrees alone (Xiao, Boyd and Kim,
    "Distributed average consensus with least-mean-square deviation", 2007).
    """
    adjacent = np.zeros((participants, participants), dtype=bool)
    for one, other in edges:
        adjacent[one, other] = adjacent[other, one] = one != other
    degree = adjacent.sum(axis=1)
    weights = adjacent / (1 + np.maximum(degree[:, None], degree[None, :]))
    return weights + np.diag(1 - weights.sum(axis=1))


def censor(matrix: np.ndarray, keep: Sequence[int]) -> np.ndarray:
    """Returns the weights among some participants, once the others have left.

    A step that led to one that has left continues by that one's own weights until it
    reaches one that is there: the stochastic complement (Meyer, "Stochastic
    complementation, uncoupling Markov chains, and the theory of nearly reducible systems",
    SIAM Review 1989). It is doubly stochastic, and connected where the matrix is. Of a
    symmetric matrix it is the Kron reduction, whose eigenvalues interlace: the spectral
    gap never becomes smaller (Dörfler and Bullo, "Kron reduction of graphs", 2013).
    """
    gone = sorted(set(range(len(matrix))) - set(keep))
    if not gone:
        return matrix[np.ix_(keep, keep)]
    stays = np.eye(len(gone)) - matrix[np.ix_(gone, gone)]
    # Least squares, because a group that mixes by itself alone makes this singular.
    through = np.linalg.lstsq(stays, matrix[np.ix_(gone, keep)], rcond=None)[0]
    found = matrix[np.ix_(keep, keep)] + matrix[np.ix_(keep, gone)] @ through
    return np.where(found > ZERO, found, 0.0)


def parts(matrix: np.ndarray) -> list[list[int]]:
    """Returns the groups of participants between which no weight leads, in order."""
    linked = (matrix > 0) | (matrix > 0).T
    unseen, found = set(range(len(matrix))), []
    while unseen:
        group, border = set[int](), {min(unseen)}
        while border:
            group |= border
            reached = np.flatnonzero(linked[sorted(border)].any(axis=0))
            border = set(reached.tolist()) - group
        unseen -= group
        found.append(sorted(group))
    return found


def second_eigenvalue(matrix: np.ndarray) -> float:
    """Returns the second largest modulus of an eigenvalue: 0 for a plain mean.

    Without the mean, whose eigenvalue is one, it is the largest that is left.
    """
    without_mean = matrix - 1 / len(matrix)
    symmetric = np.allclose(matrix, matrix.T, rtol=0, atol=1e-12)
    values = (np.linalg.eigvalsh if symmetric else np.linalg.eigvals)(without_mean)
    return float(np.abs(values).max())
