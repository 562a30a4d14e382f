"""A cluster of Kubernetes for tests: a real control plane, and nodes that are played."""

import contextlib
import os
import sys
from pathlib import Path

from launch.network.namespaces import network as network_of

from .kubernetes_control_plane import ROOT, control_plane
from .kubernetes_kubelet import Kubelet

NODES = ("n2", "n9", "n10")
_NUM_ADDRESSES = 12


# The kinds of objects that a job can leave, in the order in which they are deleted.
PATHS = {
    "job": "/apis/batch/v1/namespaces/default/jobs",
    "pod": "/api/v1/namespaces/default/pods",
    "secret": "/api/v1/namespaces/default/secrets",
    "service": "/api/v1/namespaces/default/services",
    "policy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
}
_OURS = "app.kubernetes.io/managed-by"
_ROLE = ROOT / "examples" / "kubernetes_role.yaml"
_RIGHTS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


class Cluster:
    """A running cluster.

    Attributes:
        api: Its API.
        kubelet: Its nodes.
        environ: The variables that lead its administrator to it.
        launchers_environ: Those of a user who has the role of `examples/`, and no other.
    """

    def __init__(self, plane, kubelet):
        self.api = plane.api
        self.wait_for = plane.wait_for
        self.kubelet = kubelet
        self.environ = {"KUBECONFIG": str(plane.kubeconfig)}
        self.launchers_environ = {"KUBECONFIG": str(plane.launchers_kubeconfig)}

    def objects(self):
        """The kind and the name of everything that a job can leave."""
        return [
            (kind, each["metadata"]["name"])
            for kind, path in PATHS.items()
            for each in self.api("GET", f"{path}?labelSelector={_OURS}")["items"]
        ]

    def clear(self):
        """Deletes what a test that failed has left."""
        for kind, name in self.objects():
            self.api(
                "DELETE", f"{PATHS[kind]}/{name}?gracePeriodSeconds=0", check=False
            )

    def cordon(self, *nodes, is_closed=True):
        """Closes nodes to new pods, or opens them."""
        for node in nodes:
            spec = {"spec": {"unschedulable": is_closed}}
            kind = "application/merge-patch+json"
            self.api("PATCH", f"/api/v1/nodes/{node}", spec, kind=kind)

    def node_of(self, job, task):
        """The node of a task's pod."""
        pod = self.kubelet.pod_of(job, task)
        return pod and pod.value["spec"]["nodeName"]


def give_rights(api):
    """Applies the role that the documentation tells an administrator to apply."""
    import yaml

    for made in yaml.safe_load_all(_ROLE.read_text()):
        api("POST", f"{_RIGHTS}/{made['kind'].lower()}s", made)


@contextlib.contextmanager
def kubernetes_cluster(directory):
    """Starts a cluster, and removes it and whatever still runs on it."""
    addresses = [f"p{index}" for index in range(_NUM_ADDRESSES)]
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/root"),
        # The file system of a pod goes with it; this one would stay.
        "TMPDIR": str(directory),
    }
    plane_directory, pods = directory / "plane", directory / "pods"
    plane_directory.mkdir()
    pods.mkdir()
    with (
        network_of(addresses) as network,
        control_plane(plane_directory) as plane,
    ):
        kubelet = Kubelet(plane.api, NODES, network, addresses, pods, environ)
        kubelet.start()
        try:
            cluster = Cluster(plane, kubelet)
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            plane.wait_for(
                lambda: plane.api("GET", account, check=False).get("secrets"), "account"
            )
            give_rights(plane.api)
            yield cluster
        finally:
            kubelet.stop()
