"""Requirements of tfdist, checked before any import that would fail without them."""

import tensorflow as tf

FIRST_TENSORFLOW = (2, 16)


def check_tensorflow(version: str) -> None:
    """Checks that this is a TensorFlow with Keras 3.

    Raises:
        ImportError: If it is older. Such a one has an Estimator of its own.
    """
    if tuple(int(number) for number in version.split(".")[:2]) < FIRST_TENSORFLOW:
        raise ImportError(
            f"tfdist needs TensorFlow 2.16 or newer; version {version} is installed. It "
            "has an Estimator of its own: an Estimator program runs on it as it is, "
            "with tf.estimator in place of tfdist.estimator. For all else, "
            "pip install 'tensorflow>=2.16'"
        )


check_tensorflow(tf.__version__)
