"""How a replica's number relates to the whole batch's, and how such kinds combine.

Strings are the types of TensorFlow's operations.
"""

import enum
from collections.abc import Iterable


class Kind(enum.Enum):
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


CONSTANTS = frozenset({Kind.SAME, Kind.DRAWN})
WEIGHED = CONSTANTS | {Kind.MEAN}
"""The kinds whose value for the batch is the replicas' mean, weighted by shares."""

ADDED_UP = frozenset({Kind.ROWS, Kind.SUM, Kind.COUNT})
"""The kinds whose value for the batch is the sum of the replicas'."""

INDIVISIBLE = frozenset({Kind.UNKNOWN, Kind.TAKEN, Kind.MIXED})
"""The kinds whose value for the batch does not follow from the replicas'."""

REFUSED = INDIVISIBLE | {Kind.OTHER, Kind.SHAPE}
"""The kinds whose value for the batch is not put together from the replicas'."""


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Functions of their first input, linear in it while all others are constants: the mean
# or sum of their results is the result for the mean or sum.
UNARY = _types("""
    Identity IdentityN StopGradient PreventGradient Snapshot Neg Cast CheckNumerics Reshape
    Squeeze ExpandDims EnsureShape BroadcastTo Transpose Slice StridedSlice GatherV2 Unpack
    Sum Mean Tile
""")
ADDITIVE = _types("Add AddV2 AddN Sub Pack ConcatV2")
PRODUCTS = _types("Mul MatMul BatchMatMulV2 Einsum")
QUOTIENTS = _types("RealDiv DivNoNan")
CHOICES = _types("Select SelectV2")
SUMS_OVER_ROWS = _types("""
    Sum L2Loss MatMul BatchMatMulV2 Einsum SegmentSum SegmentSumV2 UnsortedSegmentSum
    Bincount DenseBincount ScatterNd
""")
"""Operations that add rows up where they contract the dimension of the examples."""


def of_sum(kinds: Iterable[Kind]) -> Kind:
    """Returns the kind of a sum of numbers that are not all constants."""
    distinct = set(kinds)
    # A constant counts once in a mean. In a sum over replicas it would count once per
    # replica, which is why SUM + SAME is no SUM.
    if distinct <= WEIGHED:
        return Kind.MEAN
    if distinct <= {Kind.SUM, Kind.COUNT}:
        return Kind.SUM if Kind.SUM in distinct else Kind.COUNT
    return Kind.OTHER if distinct & (REFUSED | {Kind.ROWS}) else Kind.LINEAR


def of_product(kinds: Iterable[Kind]) -> Kind:
    """Returns the kind of a product of numbers that are not all constants."""
    factors = [kind for kind in kinds if kind not in CONSTANTS]
    if len(factors) == 1:
        return factors[0]
    if len(factors) != 2 or Kind.COUNT not in factors:
        return Kind.OTHER
    (other,) = set(factors) - {Kind.COUNT} or {Kind.OTHER}
    if other is Kind.MEAN:
        return Kind.SUM
    # Each replica knows how many examples all have.
    return Kind.LINEAR if other in (Kind.SUM, Kind.LINEAR) else Kind.OTHER


def of_quotient(numerator: Kind, denominator: Kind) -> Kind:
    """Returns the kind of a quotient of two numbers that are not both constants."""
    if denominator in CONSTANTS:
        return numerator
    if denominator is not Kind.COUNT:
        return Kind.OTHER
    if numerator in (Kind.SUM, Kind.COUNT):
        return Kind.MEAN
    return Kind.LINEAR if numerator is Kind.LINEAR else Kind.OTHER
