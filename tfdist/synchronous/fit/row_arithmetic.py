"""Operations that compute with rows: element by element, or along other axes."""

from dataclasses import replace

from tfdist.synchronous.fit.application import Application, Rule, Rules
from tfdist.synchronous.fit.kind import Kind
from tfdist.synchronous.fit.rows import (
    NotOwnError,
    Rows,
    apart_from,
    constants_only,
    rows_only,
    same,
    together,
    unless_by_row,
)

ARITHMETIC = Rules()
_rule = ARITHMETIC.of


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
    "MatrixDiagV2 MatrixDiagV3",
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
        rank = len(at.operands[0].shape)
        if at.operands[0].rows is None or found.axis >= rank - count:
            raise NotOwnError
        others = [each for each in at.operands if not each.rows]
        return unless_by_row(found, [o for o in others if len(o.shape) == rank], rank)

    return rule


for _count, _types in _LAST_AXES.items():
    _rule(_types)(_last_axes(_count))


@_rule("""
    SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits InTopK InTopKV2
    ReverseSequence ImageProjectiveTransformV3
""")
def _of_two_for_each(at: Application) -> Rows:
    first, second, *others = at.operands
    rows_only([first, second])
    constants_only(others)
    rows = same([each.rows for each in (first, second) if each.rows])
    if rows.axis or (at.op.type == "ReverseSequence" and at.op.get_attr("batch_dim")):
        raise NotOwnError
    for each in (first, second):
        unless_by_row(rows, [] if each.rows else [each], len(each.shape))
    return rows


@_rule("""
    Conv Conv2D Conv3D DepthwiseConv2dNative Dilation2D MaxPool MaxPoolV2 MaxPool3D AvgPool
    AvgPool3D MaxPoolWithArgmax LRN DepthToSpace SpaceToDepth ResizeBilinear ResizeBicubic
    ResizeNearestNeighbor ResizeArea ScaleAndTranslate ExtractImagePatches
    ExtractVolumePatches Multinomial StatelessMultinomial
""")
def _leading(at: Application) -> Rows:
    constants_only(at.operands[1:])
    rows = at.operands[0].rows
    if rows is None or rows.axis:
        raise NotOwnError
    return rows


@_rule("Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput")
def _transposed_convolution(at: Application) -> Rows:
    _, filters, of = at.operands
    constants_only([filters])
    if of.rows is None or of.rows.axis:
        raise NotOwnError
    return of.rows


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
    return unless_by_row(rows, others, rank)


def _kept_axis(rank: int, place: int, is_transposed: bool) -> int:
    """Returns the axis of a factor that is not summed over."""
    is_last = bool(place) != bool(is_transposed)
    return rank - 1 if is_last else rank - 2


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


@_rule("OneHot")
def _one_hot(at: Application) -> Rows:
    constants_only(at.operands[1:])
    rows = together(at.operands[:1])
    place = int(at.op.get_attr("axis")) % at.rank
    return replace(rows, axis=rows.axis + (place <= rows.axis))
