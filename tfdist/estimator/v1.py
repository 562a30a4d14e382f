"""The names of `tf.compat.v1.estimator`, for programs that import these."""

from tfdist.estimator.names import v1 as _v1

__all__ = sorted(name for name in vars(_v1) if not name.startswith("_"))

globals().update({name: getattr(_v1, name) for name in __all__})
