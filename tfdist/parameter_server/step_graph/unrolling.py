"""Limits of the size of functions: copies of a step, and graph optimizers. Pure."""

LONGEST_CHUNK = 20
"""The most steps that follow each other without a loop: more gain little."""

LARGEST_CHUNK = 5_000
"""The most operations that follow each other without a loop.

Each worker prepares all of them before its first step, in a time that grows faster than
their number: the first message of 20 steps of a transformer of 2,839 operations took 47.7 s
without a loop, 4.7 s in such chunks and 4.3 s as a loop, of ResNet50 (7,768 operations)
214, 48 and 32 s (2 ps and a worker on two cores, measured at 4c1c5a7). A larger model
computes long enough that six more messages per step do not matter.
"""


def copies(operations: int, steps_each: int = 1) -> int:
    """Returns how many copies of a graph to put into the body of a loop, at most.

    Args:
        operations: The number of operations in the graph.
        steps_each: How many steps it is.
    """
    return max(1, min(LONGEST_CHUNK // steps_each, LARGEST_CHUNK // operations))


LARGEST_OPTIMIZED = 10_000
"""The most operations of a function that TensorFlow's graph optimizers are given.

They took 5 s of CPU time for 15,000 operations, of 6 s that a worker needed before its
first step, and four times as long for twice as many.
"""


def is_optimized(operations: int) -> bool:
    """Returns True if TensorFlow's graph optimizers are worth their time."""
    return operations <= LARGEST_OPTIMIZED
