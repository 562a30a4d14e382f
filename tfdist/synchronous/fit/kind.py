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
        SELECTED: A mean over selected examples, whose number varies by replica.
        SUM: A sum over examples. The batch's is the sum of all.
        COUNT: The number of examples or a multiple of it, proportional to the share.
        SHAPE: A shape whose first element is a COUNT.
        OTHER: A function of these kinds that is none of them itself.
        UNKNOWN: Computed from the examples by an operation that is not a sum over them.
        TAKEN: Computed from examples selected by their position in the batch.
        POSITIONS: Numbers of rows, from the first one of the replica.
        EXAMPLE: The value of one example, in the turn of a loop over the examples.
        MIXED: An example's value that may be computed from other examples.
    """

    SAME = enum.auto()
    DRAWN = enum.auto()
    ROWS = enum.auto()
    MEAN = enum.auto()
    SELECTED = enum.auto()
    SUM = enum.auto()
    COUNT = enum.auto()
    SHAPE = enum.auto()
    OTHER = enum.auto()
    UNKNOWN = enum.auto()
    TAKEN = enum.auto()
    POSITIONS = enum.auto()
    EXAMPLE = enum.auto()
    MIXED = enum.auto()


CONSTANTS = frozenset({Kind.SAME, Kind.DRAWN})
WEIGHED = CONSTANTS | {Kind.MEAN}
"""The kinds whose value for the batch is the replicas' mean, weighted by shares."""

INDIVISIBLE = frozenset({Kind.UNKNOWN, Kind.TAKEN, Kind.POSITIONS, Kind.MIXED})
"""The kinds whose value for the batch does not follow from the replicas'."""

ADDED_UP = frozenset({Kind.ROWS, Kind.SUM, Kind.COUNT})
"""The kinds whose value for the batch is the sum of the replicas'."""

# Functions of their first input, linear in it while all others are constants: the mean
# or sum of their results is the result for the mean or sum.
UNARY = frozenset(
    [
        "Identity",
        "IdentityN",
        "StopGradient",
        "PreventGradient",
        "Snapshot",
        "Neg",
        "Cast",
        "CheckNumerics",
        "Reshape",
        "Squeeze",
        "ExpandDims",
        "EnsureShape",
        "BroadcastTo",
        "Transpose",
        "Slice",
        "StridedSlice",
        "GatherV2",
        "Unpack",
        "Sum",
        "Mean",
        "Tile",
        "ReluGrad",
        "SoftplusGrad",
    ]
)
# The same, of their second input.
LINEAR_IN_SECOND = frozenset(
    ["ReciprocalGrad", "RsqrtGrad", "SigmoidGrad", "SqrtGrad", "TanhGrad"]
)
ADDITIVE = frozenset(["Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2"])
PRODUCTS = frozenset(["Mul", "MatMul", "BatchMatMulV2", "Einsum"])
QUOTIENTS = frozenset(["RealDiv", "DivNoNan"])
CHOICES = frozenset(["Select", "SelectV2"])
# Operations that may contract the dimension of the examples. `has_rows` tells whether
# it is still there.
SUMS_OVER_ROWS = frozenset(
    [
        "Sum",
        "L2Loss",
        "MatMul",
        "BatchMatMulV2",
        "Einsum",
        "SegmentSum",
        "SegmentSumV2",
        "UnsortedSegmentSum",
        "Bincount",
        "DenseBincount",
        "ScatterNd",
    ]
)


def of_sum(kinds: Iterable[Kind]) -> Kind:
    """Returns the kind of a sum of numbers that are not all constants."""
    distinct = set(kinds)
    # A constant counts once in a mean. In a sum over replicas it would count once per
    # replica, which is why SUM + SAME is OTHER.
    if distinct <= WEIGHED:
        return Kind.MEAN
    if distinct <= {Kind.SUM, Kind.COUNT}:
        return Kind.SUM if Kind.SUM in distinct else Kind.COUNT
    return Kind.OTHER


def of_product(kinds: Iterable[Kind]) -> Kind:
    """Returns the kind of a product of numbers that are not all constants."""
    factors = [kind for kind in kinds if kind not in CONSTANTS]
    if len(factors) == 1:
        return factors[0]
    is_total = sorted(each.name for each in factors) == ["COUNT", "MEAN"]
    return Kind.SUM if is_total else Kind.OTHER


def of_quotient(numerator: Kind, denominator: Kind) -> Kind:
    """Returns the kind of a quotient of two numbers that are not both constants."""
    if denominator in CONSTANTS:
        return numerator
    if denominator is Kind.COUNT and numerator in (Kind.SUM, Kind.COUNT):
        return Kind.MEAN
    return Kind.OTHER
