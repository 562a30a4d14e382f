"""What each operation does to the rows of a batch.

A list of what is known to keep examples apart. Whatever is not in it is refused: that no
rule is known to be broken does not prove that an example's value is its own.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tfdist.synchronous.fit.kind import CONSTANTS, Kind
from tfdist.synchronous.fit.loops import IN_A_LIST
from tfdist.synchronous.fit.rows import (
    SELECTED,
    NotOwnError,
    Operand,
    Rows,
    apart_from,
    constants_only,
    reshaped,
    rows_only,
    same,
    together,
)
from tfdist.synchronous.fit.sizes import EXAMPLES, RowsOf, constant, counts, sizes


@dataclass(frozen=True)
class Application:
    """An operation with what is known of its inputs.

    Attributes:
        output: The tensor in question.
        operands: The inputs.
        rows_of: Returns where the rows of any tensor are, or None if it has none.
        counters: The tensors that are the number of the turn of a loop.
    """

    output: Any
    operands: list[Operand]
    rows_of: RowsOf
    counters: Collection[Any] = ()

    @property
    def op(self) -> tf.Operation:
        """The operation."""
        return self.output.op

    @property
    def rank(self) -> int:
        """The number of dimensions of the output."""
        if self.output.shape.rank is None:
            raise NotOwnError
        return int(self.output.shape.rank)

    @property
    def shape(self) -> list[int | None]:
        """The static shape of the output."""
        return list(self.output.shape[: self.rank])


Rule = Callable[[Application], Rows]
RULES: dict[str, Rule] = {}
"""By the type of the operation."""


def _rule(types: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(types.split(), rule))
        return rule

    return register


def follow(application: Application) -> Rows:
    """Returns where the rows of an operation's output are.

    Raises:
        NotOwnError: If they may depend on other examples than their own.
    """
    rule = RULES.get(application.op.type)
    if rule is None:
        raise NotOwnError
    return rule(application)


@_rule("""
    Abs Acos Acosh AsString Asin Asinh Atan Atanh BesselI0e BesselI1e Bitcast Bucketize
    Cast Ceil CheckNumerics ComplexAbs Conj Cos Cosh Digamma Elu EnsureShape Erf Erfc Erfinv
    Exp Expm1 FakeQuantWithMinMaxArgs Floor Identity Imag Inv Invert IsFinite IsInf IsNan
    LeakyRelu Lgamma Log Log1p LogicalNot Ndtri Neg OnesLike PreventGradient Real Reciprocal
    Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Snapshot Softplus Softsign Sqrt
    Square StopGradient StringLength StringLower StringUpper Tan Tanh ZerosLike
    Add AddN AddV2 ApproximateEqual Atan2 BitwiseAnd BitwiseOr BitwiseXor ClipByValue Complex
    Equal FloorDiv FloorMod Greater GreaterEqual Igamma Igammac LeftShift Less LessEqual
    LogicalAnd LogicalOr Maximum Minimum Mod MulNoNan NextAfter NotEqual Polygamma Pow
    RightShift Select SelectV2 SquaredDifference Sub TruncateDiv TruncateMod Xdivy Xlog1py
    Xlogy Zeta FakeQuantWithMinMaxVars Angle
""")
def _by_element(at: Application) -> Rows:
    return together(at.operands, at.rank)


@_rule("Mul RealDiv Div DivNoNan")
def _scaled(at: Application) -> Rows:
    # Rows divided by their number add up to a mean in one process. On replicas, each
    # divides by its own number, and the sum is as many means as there are replicas.
    return together(at.operands, at.rank)


@_rule("IdentityN")
def _one_of_many(at: Application) -> Rows:
    return together([at.operands[at.output.value_index]])


@_rule("BiasAdd")
def _bias(at: Application) -> Rows:
    constants_only(at.operands[1:])
    return apart_from(at.operands[0].rows, [-1, 1], at.rank)


@_rule("LookupTableFindV2")
def _looked_up(at: Application) -> Rows:
    constants_only([at.operands[0], at.operands[2]])
    return together(at.operands[1:2])


@_rule("Sum Mean Max Min Prod All Any EuclideanNorm ArgMax ArgMin")
def _reduction(at: Application) -> Rows:
    of, axes = at.operands[:2]
    if axes.value is None:
        raise NotOwnError
    rank, reduced = len(of.shape), axes.value.ravel().tolist()
    rows = apart_from(of.rows, reduced, rank)
    if at.op.type[:3] != "Arg" and at.op.get_attr("keep_dims"):
        return rows
    places = {int(axis) % rank for axis in reduced}
    return replace(rows, axis=rows.axis - sum(p < rows.axis for p in places))


@_rule("Cumsum Cumprod CumulativeLogsumexp")
def _along_an_axis(at: Application) -> Rows:
    of, axis = at.operands[:2]
    if axis.value is None:
        raise NotOwnError
    return apart_from(of.rows, axis.value.ravel().tolist(), at.rank)


@_rule("ReverseV2 Roll")
def _moved(at: Application) -> Rows:
    axes = at.operands[-1]
    constants_only(at.operands[1:])
    if axes.value is None or not at.operands[0].rows:
        raise NotOwnError
    if at.operands[0].rows.axis in (axes.value.ravel() % at.rank).tolist():
        raise NotOwnError(Kind.TAKEN)
    return at.operands[0].rows


# How many of the last axes of their first input these combine.
_LAST_AXES = {
    1: "Softmax LogSoftmax TopK TopKV2 NthElement FFT IFFT RFFT IRFFT MatrixDiag "
    "MatrixDiagV2 MatrixDiagV3 Dilation2D",
    2: "MatrixBandPart MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixInverse "
    "MatrixDeterminant LogMatrixDeterminant Cholesky Qr Svd SelfAdjointEigV2 FFT2D IFFT2D "
    "RFFT2D IRFFT2D MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MatrixSolve "
    "MatrixTriangularSolve MatrixExponential MatrixSquareRoot",
    3: "FFT3D IFFT3D RFFT3D IRFFT3D AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV "
    "HSVToRGB",
}


def _last_axes(count: int) -> Rule:
    def rule(at: Application) -> Rows:
        rows_only(at.operands)
        found = same([each.rows for each in at.operands if each.rows])
        first = at.operands[0]
        if first.rows is None or found.axis >= len(first.shape) - count:
            raise NotOwnError
        return found

    return rule


for _count, _types in _LAST_AXES.items():
    _rule(_types)(_last_axes(_count))


@_rule("""
    SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits InTopK InTopKV2
    Conv Conv2D Conv3D DepthwiseConv2dNative MaxPool MaxPoolV2 MaxPool3D AvgPool AvgPool3D
    MaxPoolWithArgmax LRN DepthToSpace SpaceToDepth ResizeBilinear ResizeNearestNeighbor
    ResizeBicubic ResizeArea ScaleAndTranslate ImageProjectiveTransformV3
    ExtractImagePatches ExtractVolumePatches ReverseSequence Multinomial
    NonMaxSuppressionWithOverlaps L2Normalize
""")
def _leading(at: Application) -> Rows:
    rows_only(at.operands)
    found = same([each.rows for each in at.operands if each.rows])
    if found.axis:
        raise NotOwnError
    if at.op.type == "ReverseSequence" and at.op.get_attr("batch_dim"):
        raise NotOwnError
    shared = {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
    if at.op.type in shared | {"InTopK", "InTopKV2", "ReverseSequence"}:
        for each in at.operands[:2]:
            # A constant with a value for each row counts them from the replica's first.
            if not each.rows and each.shape[:1] != [1]:
                raise NotOwnError
    return found


@_rule("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 SparseMatMul")
def _matrix_product(at: Application) -> Rows:
    rows_only(at.operands)
    names = ("transpose_a", "transpose_b")
    if at.op.type.startswith("Batch"):
        names = ("adj_x", "adj_y")
    found, rank = [], at.rank
    for place, each in enumerate(at.operands):
        if each.rows is None:
            continue
        own = len(each.shape)
        kept = _kept_axis(own, place, at.op.get_attr(names[place]))
        if each.rows.axis < own - 2:
            found.append(replace(each.rows, axis=each.rows.axis + rank - own))
        elif each.rows.axis == kept:
            found.append(replace(each.rows, axis=rank - 2 + place))
        else:
            raise NotOwnError
    rows = same(found)
    others = [each for each in at.operands if not each.rows]
    if rows.axis >= rank - 2:
        # Rows of both would meet in all pairs.
        if len(found) > 1:
            raise NotOwnError
        return rows
    return _unless_by_row(rows, others, rank)


def _kept_axis(rank: int, place: int, is_transposed: bool) -> int:
    """Returns the axis of a factor that is not summed over."""
    is_last = bool(place) != bool(is_transposed)
    return rank - 1 if is_last else rank - 2


def _unless_by_row(rows: Rows, constants: Sequence[Operand], rank: int) -> Rows:
    for each in constants:
        place = rows.axis - (rank - len(each.shape))
        if place >= 0 and each.shape[place] != 1:
            raise NotOwnError
    return rows


@_rule("Einsum")
def _einsum(at: Application) -> Rows:
    rows_only(at.operands)
    equation = at.op.get_attr("equation").decode().replace(" ", "")
    sides, _, result = equation.partition("->")
    labels, found = set(), []
    terms = sides.split(",")
    for term, each in zip(terms, at.operands, strict=True):
        if each.rows:
            spelled = _spelled(term, len(each.shape))
            labels.add(spelled[each.rows.axis])
            found.append(replace(each.rows, axis=0))
    result_labels = _spelled(result, at.rank)
    if len(labels) != 1 or not labels <= set(result_labels):
        raise NotOwnError
    label = labels.pop()
    for term, each in zip(terms, at.operands, strict=True):
        spelled = _spelled(term, len(each.shape))
        is_by_row = label in spelled and each.shape[spelled.index(label)] != 1
        if spelled.count(label) > 1 or (not each.rows and is_by_row):
            raise NotOwnError
    return replace(same(found), axis=result_labels.index(label))


def _spelled(term: str, rank: int) -> list[str]:
    """Returns a label for each axis. Axes of an ellipsis are numbered from the last."""
    before, dots, after = term.partition("...")
    if not dots:
        return list(term)
    count = rank - len(before) - len(after)
    return [*before, *(f"-{count - i}" for i in range(count)), *after]


@_rule("Reshape")
def _reshape(at: Application) -> Rows:
    of, shape = at.operands
    new = sizes(shape.tensor, at.rows_of) or [None] * at.rank
    is_counted = new[0] == EXAMPLES
    static = zip(new, at.shape, strict=True)
    new = [own if known is None else known for own, known in static]
    known = [None if size in (-1, EXAMPLES) else size for size in new]
    return reshaped(of, shape, known, is_counted)


@_rule("Transpose ConjugateTranspose")
def _transpose(at: Application) -> Rows:
    of, order = at.operands
    if of.rows is None or order.value is None:
        raise NotOwnError
    return replace(of.rows, axis=order.value.tolist().index(of.rows.axis))


@_rule("ExpandDims")
def _expand(at: Application) -> Rows:
    of, axis = at.operands
    if of.rows is None or axis.value is None:
        raise NotOwnError
    place = int(axis.value.ravel()[0]) % at.rank
    return replace(of.rows, axis=of.rows.axis + (place <= of.rows.axis))


@_rule("Squeeze")
def _squeeze(at: Application) -> Rows:
    (of,) = at.operands
    rank = len(of.shape)
    axes = [axis % rank for axis in at.op.get_attr("squeeze_dims")]
    if of.rows is None or not axes or of.rows.axis in axes:
        raise NotOwnError
    return replace(of.rows, axis=of.rows.axis - sum(a < of.rows.axis for a in axes))


@_rule("ConcatV2")
def _concat(at: Application) -> Rows:
    *parts, axis = at.operands
    if axis.value is None:
        raise NotOwnError
    place = int(axis.value) % at.rank
    rows_only(parts)
    rows = same([each.rows for each in parts if each.rows])
    if place != rows.axis:
        return _unless_by_row(rows, [p for p in parts if not p.rows], at.rank)
    if any(each.rows is None for each in parts):
        raise NotOwnError(Kind.TAKEN)
    if len(parts) == 1:
        return rows
    return Rows(rows.axis, (*(rows.order or ()), f"{len(parts)} blocks"))


@_rule("Pack")
def _pack(at: Application) -> Rows:
    rows = together(at.operands, at.rank - 1)
    place = int(at.op.get_attr("axis")) % at.rank
    return replace(rows, axis=rows.axis + (place <= rows.axis))


@_rule("Unpack")
def _unpack(at: Application) -> Rows:
    (of,) = at.operands
    rank = len(of.shape)
    place = int(at.op.get_attr("axis")) % rank
    if of.rows is None or of.rows.axis == place:
        raise NotOwnError(Kind.TAKEN)
    return replace(of.rows, axis=of.rows.axis - (place < of.rows.axis))


@_rule("Split SplitV")
def _split(at: Application) -> Rows:
    places = (1, 0) if at.op.type == "Split" else (0, 2)
    of, axis = (at.operands[place] for place in places)
    if of.rows is None or axis.value is None:
        raise NotOwnError
    if int(axis.value) % at.rank == of.rows.axis:
        raise NotOwnError(Kind.TAKEN)
    return of.rows


@_rule("StridedSlice")
def _strided_slice(at: Application) -> Rows:
    of, begin, _, strides = at.operands
    if of.rows is None:
        raise NotOwnError(Kind.TAKEN)
    masks = {
        name: at.op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    count = begin.shape[0]
    if count is None:
        raise NotOwnError
    rank = len(of.shape)
    # Those that neither make an axis nor stand for several.
    single = [
        i for i in range(count) if not (masks["ellipsis"] | masks["new_axis"]) >> i & 1
    ]
    source = result = 0
    for i in range(count):
        bit = 1 << i
        if masks["ellipsis"] & bit:
            covered = rank - len(single)
            if source <= of.rows.axis < source + covered:
                return replace(of.rows, axis=result + of.rows.axis - source)
            source, result = source + covered, result + covered
        elif masks["new_axis"] & bit:
            result += 1
        elif source == of.rows.axis:
            is_whole = masks["end"] & bit and (
                masks["begin"] & bit or begin.element(i) == 0
            )
            if masks["shrink_axis"] & bit or not is_whole or strides.element(i) != 1:
                raise NotOwnError(Kind.TAKEN)
            return replace(of.rows, axis=result)
        else:
            source, result = source + 1, result + (not masks["shrink_axis"] & bit)
    return replace(of.rows, axis=of.rows.axis - source + result)


@_rule("Slice")
def _slice(at: Application) -> Rows:
    of, begin, size = at.operands
    if of.rows is None:
        raise NotOwnError(Kind.TAKEN)
    axis = of.rows.axis
    if begin.element(axis) != 0 or size.element(axis) != -1:
        raise NotOwnError(Kind.TAKEN)
    return of.rows


@_rule("GatherV2")
def _gather(at: Application) -> Rows:
    of, indices, axis = at.operands
    batch = at.op.get_attr("batch_dims")
    if axis.value is None:
        raise NotOwnError
    place = int(axis.value) % len(of.shape)
    if of.rows and of.rows.axis == place:
        if keeps_or_drops(indices.tensor):
            return replace(of.rows, order=SELECTED)
        raise NotOwnError(Kind.TAKEN if indices.kind in CONSTANTS else Kind.MIXED)
    rows_only(at.operands[:2])
    added = len(indices.shape) - batch
    if of.rows and indices.rows:
        rows = same([of.rows, indices.rows])
        if rows.axis >= batch:
            raise NotOwnError
        return rows
    if of.rows:
        if of.rows.axis < batch:
            _unless_by_row(of.rows, [indices], len(indices.shape))
        is_behind = of.rows.axis > place
        return replace(of.rows, axis=of.rows.axis + (added - 1) * is_behind)
    if indices.rows is None or indices.rows.axis < batch:
        raise NotOwnError
    return replace(indices.rows, axis=place + indices.rows.axis - batch)


@_rule("ResourceGather")
def _embedding(at: Application) -> Rows:
    return together(at.operands[1:])


@_rule("GatherNd ResourceGatherNd")
def _gather_each(at: Application) -> Rows:
    of, indices = at.operands
    if of.rows is None:
        return apart_from(indices.rows, [-1], len(indices.shape))
    if keeps_or_drops(indices.tensor) and not of.rows.axis:
        return Rows(0, SELECTED)
    op = indices.tensor.op
    # One index for each example, the first of which is its own number.
    is_packed = op.type == "Pack" and len(indices.shape) == 2 and op.get_attr("axis")
    if not is_packed or of.rows != Rows() or not is_numbered(op.inputs[0], at.rows_of):
        raise NotOwnError(Kind.TAKEN)
    if not all(at.rows_of(each) == Rows() for each in op.inputs[1:]):
        raise NotOwnError
    return Rows()


def is_numbered(tensor: Any, rows_of: RowsOf) -> bool:
    """Returns whether a tensor numbers the examples of the replica: 0, 1, 2, ..."""
    while tensor.op.type in ("Cast", "Identity"):
        tensor = tensor.op.inputs[0]
    if tensor.op.type != "Range":
        return False
    start, limit, step = tensor.op.inputs
    return constant(start) == 0 and constant(step) == 1 and counts(limit, rows_of)


def keeps_or_drops(indices: Any) -> bool:
    """Returns whether indices are those of a mask, as in `tf.boolean_mask`.

    A mask keeps or drops each example by itself, wherever it is in the batch.
    """
    while indices.op.type in ("Squeeze", "Reshape", "Cast", "Identity"):
        indices = indices.op.inputs[0]
    return bool(indices.op.type == "Where")


@_rule("DynamicPartition")
def _partition(at: Application) -> Rows:
    rows = same([each.rows for each in at.operands if each.rows])
    if rows.axis or len(at.operands[1].shape) != 1 or not at.operands[1].rows:
        raise NotOwnError
    return replace(rows, order=SELECTED)


@_rule("OneHot")
def _one_hot(at: Application) -> Rows:
    constants_only(at.operands[1:])
    rows = together(at.operands[:1])
    place = int(at.op.get_attr("axis")) % at.rank
    return replace(rows, axis=rows.axis + (place <= rows.axis))


@_rule("Pad PadV2 MirrorPad")
def _pad(at: Application) -> Rows:
    of, padding = at.operands[:2]
    constants_only(at.operands[2:])
    if of.rows is None:
        raise NotOwnError
    if padding.value is None or padding.value[of.rows.axis].any():
        raise NotOwnError
    return of.rows


@_rule("Tile")
def _tile(at: Application) -> Rows:
    of, times = at.operands
    if of.rows is None:
        return _spread(at)
    count = times.element(of.rows.axis)
    if times.kind not in CONSTANTS:
        is_kept = times.kind in (Kind.SHAPE, Kind.OTHER) and count == 1
        if not is_kept:
            raise NotOwnError(Kind.TAKEN)
    if count == 1:
        return of.rows
    blocks = (*(of.rows.order or ()), f"{count} blocks")
    return Rows(of.rows.axis, None if of.rows.order is None else blocks)


@_rule("BroadcastTo")
def _broadcast(at: Application) -> Rows:
    of, _ = at.operands
    return together([of], at.rank) if of.rows else _spread(at)


def _spread(at: Application) -> Rows:
    """Returns where the rows are to which one constant was copied."""
    of, shape = at.operands
    constants_only([of])
    rows = _counted(at, shape)
    return _unless_by_row(rows, [of], at.rank)


@_rule("""
    Fill RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt
    StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal
    StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomGetKeyCounter StatefulUniform
    StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniformInt
    ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 StatelessRandomGammaV3
    StatelessRandomBinomial
""")
def _made(at: Application) -> Rows:
    """Returns where rows are that are all alike, and whose number a shape gives."""
    place = 2 if at.op.type.startswith("Stateful") else 0
    shape = at.operands[place]
    constants_only([each for i, each in enumerate(at.operands) if i != place])
    if shape.kind not in (Kind.SHAPE, Kind.COUNT, Kind.OTHER):
        raise NotOwnError
    return _counted(at, shape)


def _counted(at: Application, shape: Operand) -> Rows:
    op = shape.tensor.op
    if op.type == "Shape" and (measured := at.rows_of(op.inputs[0])):
        return replace(measured, order=None)
    unknown = [i for i, size in enumerate(at.shape) if size is None]
    if not unknown:
        raise NotOwnError
    return Rows(unknown[0], None)


@_rule("TensorListReserve")
def _new_list(at: Application) -> Rows:
    _, count = at.operands
    if not counts(count.tensor, at.rows_of):
        raise NotOwnError
    return Rows(IN_A_LIST, None)


@_rule("TensorListFromTensor")
def _list_of(at: Application) -> Rows:
    rows = at.operands[0].rows
    if rows is None or not (rows.axis or rows == Rows()):
        raise NotOwnError
    return replace(rows, axis=rows.axis - 1)


@_rule("TensorListGetItem")
def _item(at: Application) -> Rows:
    constants_only(at.operands[1:2])
    rows = at.operands[0].rows
    if rows is None:
        raise NotOwnError
    return rows


@_rule("TensorListSetItem")
def _with_item(at: Application) -> Rows:
    of, index, item = at.operands[:3]
    constants_only([index])
    if of.rows and of.rows.axis == IN_A_LIST:
        is_own = is_turn(index.tensor, at.counters)
        if not is_own or item.kind not in CONSTANTS | {Kind.EXAMPLE}:
            raise NotOwnError
        return Rows(IN_A_LIST)
    rows_only([of, item])
    return same([each.rows for each in (of, item) if each.rows])


def is_turn(index: Any, counters: Collection[Any]) -> bool:
    """Returns whether an index is the number of a loop's turn."""
    while index.op.type in ("Identity", "Cast"):
        index = index.op.inputs[0]
    return index.ref() in counters


@_rule("TensorListStack")
def _stack_of_list(at: Application) -> Rows:
    constants_only(at.operands[1:])
    rows = at.operands[0].rows
    if rows is None:
        raise NotOwnError
    return replace(rows, axis=rows.axis + 1)
