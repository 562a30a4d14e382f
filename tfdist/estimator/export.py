"""Inputs and outputs of an exported model: `tf.estimator.export`."""

from tfdist.estimator.names import v2 as _v2

__all__ = sorted(vars(_v2.export))

globals().update(vars(_v2.export))
