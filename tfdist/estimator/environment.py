"""The environment of an Estimator: TF_CONFIG and the model directory."""

import os
import uuid

import tensorflow as tf

import tf_config
from tf_config import contract
from tfdist._support.errors import Error
from tfdist.cluster import startup


class ModelDirError(Error, ValueError):
    """A model_dir that files cannot be written to."""


def read_tf_config() -> tf_config.TFConfig | None:
    """Returns the cluster and this task, or None if TF_CONFIG is unset or empty."""
    if os.environ.get(contract.TF_CONFIG, "").strip() in ("", "{}"):
        return None
    return tf_config.TFConfig.from_environment()


def check_no_proxy(config: tf_config.TFConfig) -> None:
    """Refuses a proxy for one of the other tasks, which would make TensorFlow hang."""
    jobs = config.cluster.cluster_spec().values()
    startup.check_no_proxy(address for job in jobs for address in job)


def check_writable(model_dir: str) -> None:
    """Checks that files can be created in a directory; creates it if necessary."""
    # Create one, because permissions do not tell about a full disk or a storage bucket.
    # Its random name cannot overwrite a file of the user.
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
