"""What a number of one replica is to that of the whole batch, and how kinds combine.

The names are those of TensorFlow's operations.
"""

import enum
from collections.abc import Iterable


class Kind(enum.Enum):
    """What a replica's number is to the whole batch's.

    Attributes:
        SAME: The same on every replica: a constant, a weight, a reduced gradient.
        DRAWN: Random and independent of the examples; each replica draws its own.
        ROWS: Still has the dimension of the examples.
        MEAN: A mean over examples: the batch's is the mean, weighed by the shares.
        SELECTED: A mean over some of the examples, whose number differs by replica.
        SUM: A sum over examples: the batch's is the sum of all.
        COUNT: The number of examples, or a multiple of it: proportional to the share.
        SHAPE: A shape, whose first element is a COUNT.
        OTHER: A function of these that is none of them.
        UNKNOWN: Computed from the examples by something that is no sum over them.
        TAKEN: Of examples that were taken out of the batch by their place in it.
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


CONSTANTS = frozenset({Kind.SAME, Kind.DRAWN})
WEIGHED = CONSTANTS | {Kind.MEAN}
"""The kinds whose value for the batch is the mean of the replicas', by their shares."""

INDIVISIBLE = frozenset({Kind.UNKNOWN, Kind.TAKEN})
ADDED_UP = frozenset({Kind.ROWS, Kind.SUM, Kind.COUNT})
"""The kinds whose value for the batch is the sum of the replicas'."""

# Of one tensor, by parameters that are the same everywhere.
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
    ]
)
ADDITIVE = frozenset(["Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2"])
PRODUCTS = frozenset(["Mul", "MatMul", "BatchMatMulV2", "Einsum"])
QUOTIENTS = frozenset(["RealDiv", "Div", "DivNoNan", "FloorDiv"])
CHOICES = frozenset(["Select", "SelectV2"])
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
    """The kind of the sum of some numbers, not all of which are constants."""
    distinct = set(kinds)
    if distinct <= WEIGHED:
        return Kind.MEAN
    if distinct <= {Kind.SUM, Kind.COUNT}:
        return Kind.SUM if Kind.SUM in distinct else Kind.COUNT
    return Kind.OTHER


def of_product(kinds: Iterable[Kind]) -> Kind:
    """The kind of the product of some numbers, not all of which are constants."""
    factors = [kind for kind in kinds if kind not in CONSTANTS]
    if len(factors) == 1:
        return factors[0]
    is_total = sorted(each.name for each in factors) == ["COUNT", "MEAN"]
    return Kind.SUM if is_total else Kind.OTHER


def of_quotient(numerator: Kind, denominator: Kind) -> Kind:
    """The kind of one number divided by another, not both of which are constants."""
    if denominator in CONSTANTS:
        return numerator
    if denominator is Kind.COUNT and numerator in (Kind.SUM, Kind.COUNT):
        return Kind.MEAN
    return Kind.OTHER
