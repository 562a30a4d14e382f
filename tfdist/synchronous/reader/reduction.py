"""Relations of a replica's number to the whole batch's, and their combinations.

Strings are the types of TensorFlow's operations.
"""

import enum
from collections.abc import Iterable


class Reduction(enum.Enum):
    """The relation of a replica's number to the whole batch's.

    Attributes:
        SAME: The same on every replica: a constant, a weight, a reduced gradient.
        DRAWN: Random and independent of the examples. Each replica draws its own.
        ROWS: Still has the dimension of the examples.
        MEAN: A mean over examples. The batch's is the mean weighted by the shares.
        SUM: A sum over examples. The batch's is the sum of all.
        COUNT: The number of examples or a multiple of it, proportional to the share.
        LINEAR: Means and sums over examples, added up, or multiplied with a COUNT.
        SHAPE: A shape whose first element is a COUNT.
        OTHER: Any other function of these kinds, such as a root or a ratio.
        UNKNOWN: Computed from the examples by an operation that is not a sum over them.
        TAKEN: Computed from examples by their position in the batch.
        MIXED: An example's value that may be computed from other examples.
    """

    SAME = enum.auto()
    DRAWN = enum.auto()
    ROWS = enum.auto()
    MEAN = enum.auto()
    SUM = enum.auto()
    COUNT = enum.auto()
    LINEAR = enum.auto()
    SHAPE = enum.auto()
    OTHER = enum.auto()
    UNKNOWN = enum.auto()
    TAKEN = enum.auto()
    MIXED = enum.auto()


CONSTANTS = frozenset({Reduction.SAME, Reduction.DRAWN})
WEIGHED = CONSTANTS | {Reduction.MEAN}
"""The kinds whose value for the batch is the replicas' mean, weighted by shares."""

ADDED_UP = frozenset({Reduction.ROWS, Reduction.SUM, Reduction.COUNT})
"""The kinds whose value for the batch is the sum of the replicas'."""

INDIVISIBLE = frozenset({Reduction.UNKNOWN, Reduction.TAKEN, Reduction.MIXED})
"""The kinds whose value for the batch does not follow from the replicas'."""

REFUSED = INDIVISIBLE | {Reduction.OTHER, Reduction.SHAPE}
"""The kinds whose value for the batch is not put together from the replicas'."""


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Functions of their first input, linear in it while all others are constants: the mean
# or sum of their results is the result for the mean or sum.
UNARY = _types("""
    Identity IdentityN StopGradient PreventGradient Snapshot Neg Cast CheckNumerics Reshape
    Squeeze ExpandDims EnsureShape BroadcastTo Transpose Slice StridedSlice GatherV2 Unpack
    Sum Mean Tile Cumsum ReverseV2
""")
ADDITIVE = _types("Add AddV2 AddN Sub Pack ConcatV2")
PRODUCTS = _types("Mul MatMul BatchMatMulV2 Einsum")
QUOTIENTS = _types("RealDiv DivNoNan")
CHOICES = _types("Select SelectV2")
_TIMES_COUNT = {
    Reduction.MEAN: Reduction.SUM,
    Reduction.SUM: Reduction.LINEAR,
    Reduction.LINEAR: Reduction.LINEAR,
}
"""The kind of a number times the number of examples, which each replica knows of all."""

_BY_COUNT = {
    Reduction.SUM: Reduction.MEAN,
    Reduction.COUNT: Reduction.MEAN,
    Reduction.LINEAR: Reduction.LINEAR,
}
"""The kind of a number that is divided by the number of examples."""

SUMS_OVER_ROWS = _types("""
    Sum L2Loss MatMul BatchMatMulV2 Einsum SegmentSum SegmentSumV2 UnsortedSegmentSum
    Bincount DenseBincount ScatterNd
""")
"""Operations that add rows up where they contract the dimension of the examples."""


def summands(operation: str, count: int) -> range:
    """Returns the places of the inputs that an operation adds up; none if it does not.

    Args:
        operation: Its type.
        count: The number of its inputs.
    """
    if operation in ADDITIVE:
        return range(count - 1 if operation == "ConcatV2" else count)
    return range(1, count) if operation in CHOICES else range(0)


def of_sum(kinds: Iterable[Reduction]) -> Reduction:
    """Returns the kind of a sum of numbers that are not all constants."""
    distinct = set(kinds)
    # A constant counts once in a mean. In a sum over replicas it would count once per
    # replica, which is why SUM + SAME is no SUM.
    if distinct <= WEIGHED:
        return Reduction.MEAN
    if distinct <= {Reduction.SUM, Reduction.COUNT}:
        return Reduction.SUM if Reduction.SUM in distinct else Reduction.COUNT
    is_linear = not distinct & (REFUSED | {Reduction.ROWS})
    return Reduction.LINEAR if is_linear else Reduction.OTHER


def of_product(kinds: Iterable[Reduction]) -> Reduction:
    """Returns the kind of a product of numbers that are not all constants."""
    factors = [kind for kind in kinds if kind not in CONSTANTS]
    if len(factors) == 1:
        return factors[0]
    if len(factors) != 2 or Reduction.COUNT not in factors:
        return Reduction.OTHER
    factors.remove(Reduction.COUNT)
    return _TIMES_COUNT.get(factors[0], Reduction.OTHER)


def of_quotient(numerator: Reduction, denominator: Reduction) -> Reduction:
    """Returns the kind of a quotient of two numbers that are not both constants."""
    if denominator in CONSTANTS:
        return numerator
    kinds = _BY_COUNT if denominator is Reduction.COUNT else {}
    return kinds.get(numerator, Reduction.OTHER)
