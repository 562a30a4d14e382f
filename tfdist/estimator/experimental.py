"""Early stopping, recurrent networks and other helpers: `tf.estimator.experimental`."""

from tfdist.estimator.names import v2 as _v2

__all__ = sorted(vars(_v2.experimental))

globals().update(vars(_v2.experimental))
