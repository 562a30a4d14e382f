"""What each operation does to the rows of a batch.

A list of what is known to keep examples apart. Whatever is not in it is refused: that no
rule is known to be broken does not prove that an example's value is its own.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from tfdist.keras.graph import inputs_of
from tfdist.synchronous.reader.reduction import CONSTANTS, Reduction
from tfdist.synchronous.reader.rows import (
    Application,
    NotOwnError,
    Operand,
    Rows,
    constants_only,
    rows_only,
    same,
    together,
    unless_by_row,
)
from tfdist.synchronous.reader.sizes import EXAMPLES, sizes

Rule = Callable[[Application], Rows]

_RULES: dict[str, Rule] = {}


def follow(application: Application) -> Rows:
    """Returns where the rows of an operation's output are.

    Raises:
        NotOwnError: If they may depend on other examples than their own.
    """
    rule = _RULES.get(application.op.type)
    if rule is None:
        raise NotOwnError
    return rule(application)


def _rule(types: str) -> Callable[[Rule], Rule]:
    """Returns a decorator of the rule for some types, separated by spaces."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(types.split(), rule))
        return rule

    return register


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
    Xlogy Zeta FakeQuantWithMinMaxVars Angle Mul RealDiv Div DivNoNan
    DecodeBase64 EncodeBase64 RegexFullMatch RegexReplace StaticRegexFullMatch
    StaticRegexReplace StringJoin StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringToNumber Substr UnicodeTranscode
""")
def _by_element(at: Application) -> Rows:
    return together(at.operands, at.rank)


@_rule("IdentityN")
def _one_of_many(at: Application) -> Rows:
    return together([at.operands[at.output.value_index]], at.rank)


@_rule("LookupTableFindV2 ResourceGather")
def _looked_up(at: Application) -> Rows:
    return at.rows_at(1)


@_rule("Cumsum Cumprod CumulativeLogsumexp ReverseV2 Roll")
def _along_an_axis(at: Application) -> Rows:
    rows = at.rows_at(0)
    _without(rows, at.operands[-1].axes(), at.rank)
    return rows


@_rule("Sum Mean Max Min Prod All Any EuclideanNorm ArgMax ArgMin")
def _reduction(at: Application) -> Rows:
    rows, axes = at.rows_at(0), at.operands[1].axes()
    left = _without(rows, axes, len(at.operands[0].shape))
    is_kept = at.op.type[:3] != "Arg" and at.op.get_attr("keep_dims")
    return rows if is_kept else left


def _without(rows: Rows, axes: list[int], rank: int) -> Rows:
    """Returns where rows are once some axes, none of which is theirs, have gone."""
    gone = {axis % rank for axis in axes}
    if rows.axis in gone:
        raise NotOwnError
    return replace(rows, axis=rows.axis - sum(place < rows.axis for place in gone))


# How many of the last axes of their first input these combine.
_LAST_AXES = {
    1: """
    Softmax LogSoftmax TopK TopKV2 NthElement FFT IFFT RFFT IRFFT MatrixDiag MatrixDiagV2
    MatrixDiagV3
    """,
    2: """
    MatrixBandPart MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixInverse
    MatrixDeterminant LogMatrixDeterminant Cholesky Qr Svd SelfAdjointEigV2 FFT2D IFFT2D
    RFFT2D IRFFT2D MatrixSolve MatrixTriangularSolve
    """,
    3: "AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB",
}


@_rule(" ".join(_LAST_AXES.values()))
def _along_last_axes(at: Application) -> Rows:
    rows_only(at.operands)
    rows = same([each.rows for each in at.operands if each.rows])
    rank = len(at.operands[0].shape)
    count = next(n for n, names in _LAST_AXES.items() if at.op.type in names.split())
    if at.operands[0].rows is None or rows.axis >= rank - count:
        raise NotOwnError
    return unless_by_row(rows, [o for o in at.operands if len(o.shape) == rank], rank)


@_rule("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits InTopKV2")
def _of_two_for_each(at: Application) -> Rows:
    pair = at.operands[:2]
    rows_only(at.operands)
    rows = same([each.rows for each in pair if each.rows])
    if rows.axis:
        raise NotOwnError
    for each in pair:
        unless_by_row(rows, [each], len(each.shape))
    return rows


@_rule("""
    BiasAdd Conv Conv2D Conv3D DepthwiseConv2dNative Dilation2D MaxPool MaxPoolV2 MaxPool3D AvgPool
    AvgPool3D MaxPoolWithArgmax LRN DepthToSpace SpaceToDepth ResizeBilinear ResizeBicubic
    ResizeNearestNeighbor ResizeArea ScaleAndTranslate ExtractImagePatches
    ExtractVolumePatches Multinomial StatelessMultinomial
    Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput
""")
def _leading(at: Application) -> Rows:
    if "BackpropInput" in at.op.type:
        # A transposed convolution: its first input is a shape.
        constants_only(at.operands[1:2])
        rows = at.operands[2].rows
    else:
        rows = at.rows_at(0)
    if rows is None or rows.axis:
        raise NotOwnError
    return rows


@_rule("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 SparseMatMul Einsum")
def _product_of_tensors(at: Application) -> Rows:
    rows_only(at.operands)
    terms, result = _as_einsum(at)
    label = _label_of_rows(at, terms)
    result_labels = _spelled(result, at.rank)
    if label not in result_labels:
        raise NotOwnError
    for term, each in zip(terms, at.operands, strict=True):
        labels = _spelled(term, len(each.shape))
        is_by_row = label in labels and each.shape[labels.index(label)] != 1
        if labels.count(label) > 1 or (not each.rows and is_by_row):
            raise NotOwnError
    axis = result_labels.index(label)
    return same([replace(each.rows, axis=axis) for each in at.operands if each.rows])


def contracts_rows(at: Application) -> bool:
    """Returns whether a product of tensors sums over rows, each of which meets itself."""
    if at.op.type not in ("MatMul", "BatchMatMulV2", "Einsum"):
        return True
    try:
        _label_of_rows(at, _as_einsum(at)[0])
        same([replace(each.rows, axis=0) for each in at.operands if each.rows])
    except NotOwnError:
        return False
    return True


def _as_einsum(at: Application) -> tuple[list[str], str]:
    """Returns the terms and the result of a product of tensors, as in `tf.einsum`."""
    if at.op.type == "Einsum":
        equation = at.op.get_attr("equation").decode().replace(" ", "")
        terms, _, result = equation.partition("->")
        return terms.split(","), result
    is_batch = at.op.type.startswith("Batch")
    names = ("adj_x", "adj_y") if is_batch else ("transpose_a", "transpose_b")
    first, second = map(at.op.get_attr, names)
    return ["...ji" if first else "...ij", "...kj" if second else "...jk"], "...ik"


def _label_of_rows(at: Application, terms: list[str]) -> str:
    """Returns the one label of the rows: two would meet in all pairs."""
    labels = {
        _spelled(term, len(each.shape))[each.rows.axis]
        for term, each in zip(terms, at.operands, strict=True)
        if each.rows
    }
    if len(labels) != 1:
        raise NotOwnError
    return labels.pop()


def _spelled(term: str, rank: int) -> list[str]:
    """Returns a label for each axis. Axes of an ellipsis are numbered from the last."""
    before, dots, after = term.partition("...")
    if not dots:
        return list(term)
    count = rank - len(before) - len(after)
    return [*before, *(f"-{count - i}" for i in range(count)), *after]


@_rule("Transpose ConjugateTranspose")
def _transpose(at: Application) -> Rows:
    rows = at.rows_at(0)
    return replace(rows, axis=at.operands[1].axes().index(rows.axis))


@_rule("ExpandDims OneHot Pack")
def _with_another_axis(at: Application) -> Rows:
    is_pack, is_expand = at.op.type == "Pack", at.op.type == "ExpandDims"
    rows = together(at.operands, at.rank - 1) if is_pack else at.rows_at(0)
    place = at.operands[1].axes()[0] if is_expand else at.op.get_attr("axis")
    return replace(rows, axis=rows.axis + (place % at.rank <= rows.axis))


@_rule("Squeeze")
def _squeeze(at: Application) -> Rows:
    axes = at.op.get_attr("squeeze_dims")
    # Without axes, a batch of one example would lose its own.
    if not axes:
        raise NotOwnError
    return _without(at.rows_at(0), axes, len(at.operands[0].shape))


@_rule("Reshape")
def _reshape(at: Application) -> Rows:
    of, shape = at.operands
    rows, output = of.rows, list(at.output.shape[: at.rank])
    found = sizes(shape.tensor, at.rows_of) or [None] * at.rank
    if rows is None or EXAMPLES in found[1:] or not _is_of_shapes(shape.tensor, at):
        raise NotOwnError
    new = [
        size if static is None and isinstance(size, int) and size >= 0 else static
        for size, static in zip(found, output, strict=True)
    ]
    axis, ahead = rows.axis, of.shape[: rows.axis]
    if new[:axis] != ahead or None in ahead or len(new) <= axis or new[axis]:
        raise NotOwnError
    if found[0] == EXAMPLES and not axis and _is_single(rows.order):
        return Rows()
    return replace(
        rows, order=_regrouped(rows.order, of.shape[axis + 1 :], new[axis + 1 :])
    )


def _is_of_shapes(tensor: Any, at: Application) -> bool:
    """Returns whether a shape is computed from constants and shapes, not from values."""
    kind = at.kind_of(tensor)
    if kind in (Reduction.LINEAR, Reduction.OTHER):
        inputs = inputs_of(tensor)
        return bool(inputs) and all(_is_of_shapes(each, at) for each in inputs)
    return kind in CONSTANTS | {Reduction.COUNT, Reduction.SHAPE}


def _regrouped(order: Any, own: list[int | None], new: list[int | None]) -> Any:
    """Returns the order of rows that were reshaped along other axes than theirs.

    An unknown size besides that of the rows is taken for the same on both sides.
    """
    if own == new:
        return order
    values, wanted = (prod(1 if n is None else n for n in each) for each in (own, new))
    if _is_single(order) and None not in [*own, *new] and order != ("each", 0):
        values *= order[1] if order else 1
        if wanted and not values % wanted:
            return () if values == wanted else ("each", values // wanted)
    elif own.count(None) == new.count(None) and values == wanted:
        return order
    elif _is_single(order) and None in own and new == own[len(own) - len(new) :]:
        return ("each", 0)
    raise NotOwnError


def _is_single(order: Any) -> bool:
    """Returns whether all rows of an example are one after the other."""
    return order == () or (order is not None and order[0] == "each" and order[2:] == ())


@_rule("ConcatV2")
def _concat(at: Application) -> Rows:
    *parts, axis = at.operands
    (place,) = axis.axes()
    rows_only(parts)
    rows = same([each.rows for each in parts if each.rows])
    if place % at.rank != rows.axis:
        return unless_by_row(rows, parts, at.rank)
    if any(each.rows is None for each in parts):
        raise NotOwnError(Reduction.TAKEN)
    return _in_blocks(rows, len(parts))


def _in_blocks(rows: Rows, count: int) -> Rows:
    """Returns rows that come so many times, one block after the other."""
    if count == 1:
        return rows
    return replace(rows, order=(*(rows.order or ()), "blocks", count))


@_rule("Pad PadV2 MirrorPad")
def _pad(at: Application) -> Rows:
    rows, padding = at.rows_at(0), at.operands[1].axes()
    if any(padding[2 * rows.axis : 2 * rows.axis + 2]):
        raise NotOwnError
    return rows


@_rule("Tile BroadcastTo")
def _copied(at: Application) -> Rows:
    of, shape = at.operands
    if of.rows is None:
        constants_only([of])
        return unless_by_row(_counted(at, shape), [of], at.rank)
    if at.op.type == "BroadcastTo":
        return together([of], at.rank)
    constants_only([shape])
    count = shape.element(of.rows.axis)
    if count is None:
        raise NotOwnError
    # Copies of rows that are alike are as many more of them.
    return of.rows if of.rows.order is None else _in_blocks(of.rows, int(count))


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
    if at.op.type.startswith("Stateless") and _from_constants(at.operands[1].tensor):
        # The same numbers on every replica, which one process has for its first rows only.
        raise NotOwnError(Reduction.TAKEN)
    return _counted(at, shape)


def _from_constants(tensor: Any) -> bool:
    """Returns whether a seed is a constant, so that numbers follow from positions."""
    if tensor.op.type in ("ReadVariableOp", "Placeholder", "VarHandleOp"):
        return False
    return all(map(_from_constants, tensor.op.inputs))


def _counted(at: Application, shape: Operand) -> Rows:
    op = shape.tensor.op
    if not _is_of_shapes(shape.tensor, at) or shape.kind in CONSTANTS:
        raise NotOwnError
    if op.type == "Shape" and (measured := at.rows_of(op.inputs[0])):
        return replace(measured, order=None)
    found = sizes(shape.tensor, at.rows_of) or []
    if EXAMPLES in found:
        return Rows(found.index(EXAMPLES), None)
    unknown = [i for i, size in enumerate(at.output.shape) if size is None]
    if len(unknown) != 1:
        raise NotOwnError
    return Rows(unknown[0], None)


@_rule("Range")
def _numbered(at: Application) -> Rows:
    raise NotOwnError(Reduction.TAKEN)


# The places of what is divided, and of the axis; an Unpack has that as an attribute.
_DIVIDED: dict[str, tuple[int, int | None]]
_DIVIDED = {"Unpack": (0, None), "Split": (1, 0), "SplitV": (0, 2)}


@_rule(" ".join(_DIVIDED))
def _divided(at: Application) -> Rows:
    of, axis = _DIVIDED[at.op.type]
    rows, rank = at.rows_at(of), len(at.operands[of].shape)
    place = at.op.get_attr("axis") if axis is None else at.operands[axis].axes()[0]
    if place % rank == rows.axis:
        raise NotOwnError(Reduction.TAKEN)
    return _without(rows, [place], rank) if axis is None else rows


@_rule("StridedSlice")
def _strided_slice(at: Application) -> Rows:
    of, begin, end, strides = at.operands
    count, rank = begin.shape[0], len(of.shape)
    if of.rows is None or count is None:
        raise NotOwnError(Reduction.TAKEN)
    from_start, to_end, ellipsis, new, one = (
        [bool(at.op.get_attr(f"{name}_mask") >> i & 1) for i in range(count)]
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    )
    covered = rank - count + sum(map(max, ellipsis, new))
    # The index for each axis, None where it is taken as it is.
    indices: list[list[int | None]]
    indices = [[None] * covered if ellipsis[i] else [i] for i in range(count)]
    indices += [] if any(ellipsis) else [[None] * covered]
    axis = source = result = 0
    for i in (each for some in indices for each in some):
        if i is not None and new[i]:
            result += 1
            continue
        if source == of.rows.axis:
            axis = result
        if i is not None and source == of.rows.axis:
            starts = from_start[i] or begin.element(i) == 0
            if one[i] or strides.element(i) != 1 or not (starts and to_end[i]):
                raise NotOwnError(Reduction.TAKEN)
        elif i is not None:
            edges = [(begin, from_start[i]), (end, to_end[i]), (strides, False)]
            if not all(is_open or at.is_same_at(edge, i) for edge, is_open in edges):
                raise NotOwnError
        source, result = source + 1, result + (i is None or not one[i])
    return replace(of.rows, axis=axis)


@_rule("GatherV2")
def _gather(at: Application) -> Rows:
    of, indices, axis = at.operands
    batch, place = at.op.get_attr("batch_dims"), axis.axes()[0] % len(of.shape)
    if of.rows and of.rows.axis == place:
        raise NotOwnError(
            Reduction.TAKEN if indices.kind in CONSTANTS else Reduction.MIXED
        )
    rows_only([of, indices])
    if of.rows and indices.rows:
        rows = same([of.rows, indices.rows])
        if rows.axis >= batch:
            raise NotOwnError
        return rows
    if of.rows:
        if of.rows.axis < batch:
            unless_by_row(of.rows, [indices], len(indices.shape))
        added = len(indices.shape) - batch - 1
        return replace(of.rows, axis=of.rows.axis + added * (of.rows.axis > place))
    if indices.rows is None or indices.rows.axis < batch:
        raise NotOwnError
    return replace(indices.rows, axis=place + indices.rows.axis - batch)
