"""Division of a batch's rows among replicas."""


def row_range(rows: int, replicas: int, replica: int) -> tuple[int, int]:
    """Returns one replica's rows of a batch, as [begin, end).

    Replicas' numbers of rows differ by at most one. All ranges together, in the order of
    the replicas, are the batch. Arguments may be integer tensors.

    >>> [row_range(10, 4, replica) for replica in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    >>> row_range(1, 2, 0)
    (0, 0)
    """
    return rows * replica // replicas, rows * (replica + 1) // replicas
