"""Rules for the effect of each operation on the rows of a batch.

The list has the operations that are known to keep examples apart. All others are
refused, because the lack of a known violation proves nothing. `shape_rules` has the
operations that move elements.
"""

from tfdist.synchronous.reader import shape_rules
from tfdist.synchronous.reader.reduction import Reduction
from tfdist.synchronous.reader.rows import (
    Application,
    NotOwnError,
    Rows,
    Rules,
    check_spared,
    constants_only,
    rows_only,
    same,
    together,
    unless_by_row,
)

_RULES = Rules(shape_rules.RULES)


def follow(application: Application) -> Rows | None:
    """Returns where the rows of an operation's output are, as a `Rule` does.

    Raises:
        NotOwnError: If they may depend on other examples than their own.
    """
    rule = _RULES.get(application.op.type)
    if rule is None:
        raise NotOwnError
    _check_seed(application)
    return rule(application)


def _check_seed(at: Application) -> None:
    """Checks that replicas do not draw the same numbers, each for its first rows.

    One process draws from such a seed once, for all rows.
    """
    if not at.op.type.startswith("Stateless"):
        return
    names = [each.name for each in at.op.op_def.input_arg]
    seeds = [
        o for name, o in zip(names, at.operands, strict=True) if name in ("seed", "key")
    ]
    if any(each.kind is Reduction.SAME for each in seeds):
        raise NotOwnError(Reduction.TAKEN)


@_RULES.of("""
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


@_RULES.of("IdentityN")
def _one_of_many(at: Application) -> Rows:
    return together([at.operands[at.output.value_index]], at.rank)


@_RULES.of("LookupTableFindV2 ResourceGather")
def _looked_up(at: Application) -> Rows:
    return at.rows_at(1)


@_RULES.of("""
    Cumsum Cumprod CumulativeLogsumexp ReverseV2 Roll
    Sum Mean Max Min Prod All Any EuclideanNorm ArgMax ArgMin
""")
def _along_other_axes(at: Application) -> Rows:
    of, *_, axes = at.operands
    check_spared(axes.axes(), len(of.shape))
    return at.rows_at(0)


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


@_RULES.of(" ".join(_LAST_AXES.values()))
def _along_last_axes(at: Application) -> Rows:
    rows_only(at.operands)
    rows = same([each.rows for each in at.operands if each.rows])
    rank = len(at.operands[0].shape)
    count = next(n for n, names in _LAST_AXES.items() if at.op.type in names.split())
    # Or else the rows are along an axis that it combines.
    if at.operands[0].rows is None or rank <= count:
        raise NotOwnError
    return unless_by_row(rows, [o for o in at.operands if len(o.shape) == rank], rank)


@_RULES.of("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits InTopKV2")
def _of_two_for_each(at: Application) -> Rows:
    pair = at.operands[:2]
    rows_only(at.operands)
    rows = same([each.rows for each in pair if each.rows])
    for each in pair:
        unless_by_row(rows, [each], len(each.shape))
    return rows


@_RULES.of("""
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
    if rows is None:
        raise NotOwnError
    return rows


@_RULES.of("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 SparseMatMul Einsum")
def _product_of_tensors(at: Application) -> Rows:
    rows_only(at.operands)
    terms, result = _as_einsum(at)
    label = _label_of_rows(at, terms)
    if _spelled(result, at.rank)[:1] != [label]:
        raise NotOwnError
    for term, each in zip(terms, at.operands, strict=True):
        labels = _spelled(term, len(each.shape))
        is_by_row = label in labels and each.shape[labels.index(label)] != 1
        if labels.count(label) > 1 or (not each.rows and is_by_row):
            raise NotOwnError
    return same([each.rows for each in at.operands if each.rows])


def contracts_rows(at: Application) -> bool:
    """Returns True if a product of tensors sums over rows, each meeting itself."""
    if at.op.type not in ("MatMul", "BatchMatMulV2", "Einsum"):
        return True
    try:
        rows_only(at.operands)
        _label_of_rows(at, _as_einsum(at)[0])
        same([each.rows for each in at.operands if each.rows])
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
        _spelled(term, len(each.shape))[0]
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
