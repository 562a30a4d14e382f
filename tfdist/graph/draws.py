"""Operations that draw numbers at random."""

from typing import Any

# fmt: off
RANDOM = frozenset((
    "AllCandidateSampler", "FixedUnigramCandidateSampler",
    "LogUniformCandidateSampler", "Multinomial", "ParameterizedTruncatedNormal",
    "RandomCrop", "RandomGamma", "RandomPoisson", "RandomPoissonV2",
    "RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt",
    "SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "TruncatedNormal",
    "UniformCandidateSampler",
))
# fmt: on
"""The operations whose only state is their place in a stream of random numbers."""


def is_seeded(node: Any) -> bool:
    """Returns True if a node draws from a stream that its seed decides."""
    return node.op in RANDOM and bool(node.attr["seed"].i or node.attr["seed2"].i)
