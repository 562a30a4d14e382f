"""Which examples of a batch are whose."""


def row_range(rows: int, replicas: int, replica: int) -> tuple[int, int]:
    """Returns the rows of a batch that one replica computes, as [begin, end).

    The numbers of rows of two replicas differ by at most one, and the rows of all, in
    the order of the replicas, are the batch. Arguments may be integer tensors.

    >>> [row_range(10, 4, replica) for replica in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    >>> row_range(1, 2, 0)
    (0, 0)
    """
    return rows * replica // replicas, rows * (replica + 1) // replicas
