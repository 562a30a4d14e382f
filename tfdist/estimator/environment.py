"""What is around an Estimator: TF_CONFIG, and the directory of the model."""

import os
import uuid

import tensorflow as tf

import tf_config
from tf_config import contract
from tfdist.cluster import startup


class ModelDirError(ValueError):
    """A model_dir that cannot be written."""


def read_tf_config() -> tf_config.TFConfig | None:
    """Returns the cluster and this task; None where TF_CONFIG says nothing of them.

    Raises:
        tf_config.ClusterError: If TF_CONFIG is not valid.
    """
    if os.environ.get(contract.TF_CONFIG, "").strip() in ("", "{}"):
        return None
    return tf_config.TFConfig.from_environment()


def check_no_proxy(config: tf_config.TFConfig) -> None:
    """Checks that TensorFlow will reach the other tasks without a proxy.

    Raises:
        tf_config.ClusterError: If it would not, and hang.
    """
    jobs = config.cluster.cluster_spec().values()
    startup.check_no_proxy(address for job in jobs for address in job)


def check_writable(model_dir: str) -> None:
    """Checks that files can be made in a directory, which is made if need be.

    Raises:
        ModelDirError: If they cannot.
    """
    # Only by doing so: permissions say nothing of a full disk, or of a bucket.
    probe = os.path.join(model_dir, f".tfdist-{uuid.uuid4().hex}")
    try:
        tf.io.gfile.makedirs(model_dir)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("")
        tf.io.gfile.remove(probe)
    except (tf.errors.OpError, OSError) as error:
        problem = str(error).splitlines()[0]
        raise ModelDirError(
            f"model_dir {model_dir!r} cannot be written ({problem}): name another in "
            "RunConfig(model_dir=...) or Estimator(model_dir=...), or change its "
            "permissions"
        ) from None
