"""The cluster that an engine has started this process in, whichever engine it is."""

from collections.abc import Mapping

from tf_config import contract, kubeflow, sagemaker, slurm
from tf_config.environment import TFConfig
from tf_config.errors import ClusterError


def from_engine(
    environ: Mapping[str, str],
    num_ps: int | None = None,
    first_port: int | None = None,
) -> TFConfig:
    """Returns the cluster that the environment describes, and this process's task.

    Kubeflow's TFJob and Ray Train set TF_CONFIG. SageMaker and Slurm set the hosts and
    this process's place among them; the roles follow from `num_ps`.

    Args:
        environ: The environment.
        num_ps: How many of the first hosts are ps; None for none, or for what TF_CONFIG
            says.
        first_port: The first port on each host; None for the engine's default.

    Raises:
        ClusterError: If no engine describes a cluster, or what it says is invalid.
    """
    has_config = bool(environ.get(contract.TF_CONFIG, "").strip())
    if has_config and num_ps is None:
        return kubeflow.read(environ)
    if sagemaker.HOSTS in environ:
        return sagemaker.read(environ, num_ps or 0, first_port)
    if slurm.NODES in environ:
        return slurm.read(environ, num_ps or 0, first_port)
    if has_config:
        raise ClusterError(
            f"TF_CONFIG says which tasks are ps, and so does num_ps={num_ps}: omit one"
        )
    raise ClusterError(
        "no engine describes a cluster here: neither TF_CONFIG (Kubeflow, Ray), nor "
        f"{sagemaker.HOSTS} (SageMaker), nor {slurm.NODES} (a task of srun) is set"
    )
