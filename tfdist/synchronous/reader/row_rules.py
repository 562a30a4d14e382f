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
    common,
    require,
    together,
    unless_by_row,
)

_RULES = Rules(shape_rules.RULES)


def follow(application: Application) -> Rows | None:
    """Returns where the rows of an operation's output are, as a `Rule` does.

    Raises:
        NotOwnError: If they may depend on other examples than their own.
    """
    name = application.op.type
    require(name in _RULES, Reduction.TAKEN if name == "Range" else Reduction.MIXED)
    _check_seed(application)
    return _RULES[name](application)


def _check_seed(at: Application) -> None:
    """Checks that replicas do not draw the same numbers, each for its first rows.

    One process draws from such a seed once, for all rows.
    """
    if at.op.type.startswith("Stateless"):
        for argument, each in zip(at.op.op_def.input_arg, at.operands, strict=True):
            is_seed = argument.name in ("seed", "key")
            require(not is_seed or each.kind is not Reduction.SAME, Reduction.TAKEN)


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


@_RULES.of("Softmax LogSoftmax TopK TopKV2 NthElement FFT IFFT RFFT IRFFT", 1)
@_RULES.of("MatrixDiag MatrixDiagV2 MatrixDiagV3", 1)
@_RULES.of("MatrixBandPart MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3", 2)
@_RULES.of("MatrixInverse MatrixDeterminant LogMatrixDeterminant Cholesky Qr Svd", 2)
@_RULES.of("MatrixSolve MatrixTriangularSolve SelfAdjointEigV2", 2)
@_RULES.of("FFT2D IFFT2D RFFT2D IRFFT2D", 2)
@_RULES.of("AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB", 3)
def _along_last_axes(at: Application, count: int) -> Rows:
    """Returns the rows of what combines the last axes of its first input."""
    rank = len(at.operands[0].shape)
    rows = together(at.operands, rank)
    # Or else the rows are along an axis that it combines.
    require(at.operands[0].rows is not None and rank > count)
    return rows


@_RULES.of("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits InTopKV2")
def _of_two_for_each(at: Application) -> Rows:
    rows = common(at.operands)
    for each in at.operands[:2]:
        unless_by_row(rows, [each], len(each.shape))
    return rows


_RULES.of("LookupTableFindV2 ResourceGather", 1)(Application.rows_at)
_RULES.of("""
    BiasAdd Conv Conv2D Conv3D DepthwiseConv2dNative Dilation2D MaxPool MaxPoolV2 MaxPool3D AvgPool
    AvgPool3D MaxPoolWithArgmax LRN DepthToSpace SpaceToDepth ResizeBilinear ResizeBicubic
    ResizeNearestNeighbor ResizeArea ScaleAndTranslate ExtractImagePatches
    ExtractVolumePatches Multinomial StatelessMultinomial
""")(Application.rows_at)
# The first input of a transposed convolution is a shape.
_RULES.of(
    "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput", 2, 0
)(Application.rows_at)


@_RULES.of("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 SparseMatMul Einsum")
def _product_of_tensors(at: Application) -> Rows:
    rows = common(at.operands)
    terms, result = _as_einsum(at)
    label = _label_of_rows(at, terms)
    require(_spelled(result, at.rank)[:1] == [label])
    for term, each in zip(terms, at.operands, strict=True):
        labels = _spelled(term, len(each.shape))
        is_by_row = label in labels and each.shape[labels.index(label)] != 1
        require(labels.count(label) <= 1 and (bool(each.rows) or not is_by_row))
    return rows


def contracts_rows(at: Application) -> bool:
    """Returns True if a product of tensors sums over rows, each meeting itself."""
    if at.op.type not in ("MatMul", "BatchMatMulV2", "Einsum"):
        return True
    try:
        common(at.operands)
        _label_of_rows(at, _as_einsum(at)[0])
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
    require(len(labels) == 1)
    return labels.pop()


def _spelled(term: str, rank: int) -> list[str]:
    """Returns a label for each axis. Axes of an ellipsis are numbered from the last."""
    before, dots, after = term.partition("...")
    if not dots:
        return list(term)
    count = rank - len(before) - len(after)
    return [*before, *(f"-{count - i}" for i in range(count)), *after]
