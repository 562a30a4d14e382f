"""`launch.kubernetes` against a real control plane; a test kubelet plays three nodes."""

import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from ..launch_programs.engine_launcher import ELASTIC, PATIENCE, EngineLauncher
from ..launch_programs.engine_suite import EngineSuite
from ..launch_programs.launcher import DEADLINE, wait_for
from .kubernetes_cluster import NODES, kubernetes_cluster
from .kubernetes_control_plane import needs_kubernetes
from .kubernetes_kubelet import IMAGE

pytestmark = [*needs_kubernetes, pytest.mark.cluster]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    before = set(psutil.pids())
    with kubernetes_cluster(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster
    left = [each for each in psutil.process_iter() if each.pid not in before]
    assert [each for each in left if is_of_cluster(each)] == []


def is_of_cluster(process):
    try:
        return process.name().startswith(("kube", "etcd", "unshare"))
    except psutil.Error:
        return False


class KubernetesLauncher(EngineLauncher):
    """Runs `python -m launch.kubernetes`."""

    engine = "kubernetes"
    chief_host = "mine-chief-0"
    runs_elsewhere = True

    def __init__(self, directory, cluster):
        super().__init__(directory, cluster.launchers_environ)
        self.cluster = cluster
        self.command = (
            *(sys.executable, "-m", "launch.kubernetes", f"--image={IMAGE}"),
            *("--name=mine", "--log_dir=logs", "--grace_period=5"),
            *("--env=TEST_MARK", "--env=PYTHONPATH", f"--work_dir={directory}"),
        )

    def check_places(self):
        where = {self.cluster.node_of("mine", f"ps:{index}") for index in (0, 1)}
        assert len(where) == 2
        assert where < {*NODES}

    def check_running(self):
        assert len(self.cluster.objects()) == 6 + 6 + 3

    def is_gone(self):
        return not self.cluster.objects()

    def lose(self, task):
        if task.startswith("worker"):
            self.kill(task)
        else:
            self.take_away(task.replace("chief:0", "chief"))

    def cut(self):
        self.take_away("worker:0")
        return "worker:0"

    def take_away(self, task):
        """Deletes the pod of a task, and returns once it has another."""
        pod = self.cluster.kubelet.pod_of("mine", task)
        self.cluster.api("DELETE", f"/api/v1/namespaces/default/pods/{pod.name}")

        def next_pod():
            found = self.cluster.kubelet.pod_of("mine", task)
            return found if found and found.uid != pod.uid else None

        return wait_for(next_pod, f"next pod of {task}")

    def wait_until_nothing_is_left(self):
        super().wait_until_nothing_is_left()
        wait_for(lambda: not self.cluster.objects(), "end of the last object")


@pytest.fixture
def launcher(tmp_path, cluster):
    with KubernetesLauncher(tmp_path, cluster) as launcher:
        yield launcher
        try:
            launcher.wait_until_nothing_is_left()
        except AssertionError:
            cluster.clear()
            raise


@pytest.mark.timeout(900)
def test_workers_join_when_there_is_a_node_and_one_is_given_up(cluster, tmp_path):
    enough, (first, *others) = tmp_path / "enough", NODES
    with KubernetesLauncher(tmp_path, cluster) as launcher:
        launcher.use_real_tfdist()
        cluster.cordon(*others)
        try:
            process = launcher.start(
                *("--num_ps=1", "--min_workers=1", "--max_restarts=0"),
                *("--cpus_per_worker=5", "--connect_timeout=60"),
                *(f"--startup_timeout={PATIENCE:g}", "--env=TF_CPP_MIN_LOG_LEVEL=2"),
                *(str(ELASTIC), "arrays", "40", enough),
                stdout=subprocess.DEVNULL,
            )
            launcher.wait_for_steps("one")
            status = launcher.jobs("status", "mine").stdout
            assert re.search(
                r": running: worker:[01]: no node for it: 0/3 nodes", status
            )
            assert f"ps:0  on {first}  " in status
            cluster.cordon(*others, is_closed=False)
            launcher.wait_for_steps("both")
            assert ": running\n" in launcher.jobs("status", "mine").stdout
            where = {
                f"worker:{i}": cluster.node_of("mine", f"worker:{i}") for i in (0, 1)
            }
            (late,) = [task for task, node in where.items() if node != first]
            cluster.cordon(*others)
            pod = cluster.kubelet.pod_of("mine", late)
            cluster.api("DELETE", f"/api/v1/namespaces/default/pods/{pod.name}")
            launcher.wait_for_steps("one")
            enough.touch()
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            cluster.cordon(*others, is_closed=False)
        launcher.wait_until_nothing_is_left()
    shown = launcher.log("launch").decode()
    assert process.returncode == 0, shown + errors
    assert f"waiting for {late}: no node for it: 0/3 nodes" in errors
    assert f"giving up {late}; the job goes on with 1 of 2 workers" in shown
    assert "a step of this worker" in launcher.log(late.replace(":", "-")).decode()
    counted = launcher.counted()
    # What the pod had under way when it went runs again.
    for name in ("iterations", "weight"):
        assert counted["asked for"] <= counted[name] <= counted["asked for"] + 80


class TestOnKubernetes(EngineSuite):
    pass


def test_kubectl_takes_the_dry_run(launcher, cluster):
    script = launcher.waiting()
    status, objects, errors = launcher.run(
        "--dry_run", "--nopod_failure_policy", script
    )
    assert status == 0, errors
    kubectl = ["kubectl", "--kubeconfig", cluster.environ["KUBECONFIG"]]
    kubectl.append(f"--cache-dir={launcher.directory / 'cache'}")

    def run(*args, text=None):
        return subprocess.run(
            [*kubectl, *args],
            input=text,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    done = run("apply", "-f", "-", text=objects)
    assert done.returncode == 0, done.stderr
    chief = ("logs", "-l", "app.kubernetes.io/component=chief")
    wait_for(lambda: run(*chief).stdout == "ready\n", "log of the chief")
    new = launcher.directory / "new"
    new.write_text("3")
    new.rename(launcher.over)

    def jobs():
        return run("get", "jobs", "-o", "jsonpath={.items[*].status.succeeded}").stdout

    # Without anybody who follows it, every pod ends with the chief, and nothing starts
    # again because of its error.
    wait_for(lambda: jobs() == "1 1 1 1 1 1", "end of every pod")
    assert "chief exited with status 3" in run("logs", "job/mine-launcher").stdout
    assert len(run("get", "pods", "-o", "name").stdout.split()) == 6
    assert run("delete", "-f", "-", text=objects).returncode == 0


def test_a_detached_job_needs_nobody_here(launcher):
    launcher.run("--detach", launcher.waiting())
    launcher.wait_for_log("chief")
    (record,) = (launcher.directory / "state").glob("tfdist/jobs/mine/job.json")
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    launcher.over.touch()
    # Another takes the place of the process that copied the logs.
    follow = launcher.jobs("follow", "mine")
    assert follow.returncode == 0, follow.stderr
    assert "[chief]    ready\n" in follow.stdout
    assert launcher.log("chief") == b"ready\n"
    assert ": ended with 0\n" in launcher.jobs("status", "mine").stdout


def test_pods_are_taken_away_and_the_job_goes_on(launcher):
    saving = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))"
    process = launcher.start(launcher.waiting(saving))
    launcher.wait_for_log("chief")
    # The status of a script that was told to end is no error of the script.
    for times, task in enumerate(["chief", "launcher"], 2):
        launcher.take_away(task)
        wait_for(
            lambda n=times: launcher.log("chief").count(b"ready") == n, "next chief"
        )
    launcher.over.touch()
    shown, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, shown + errors
    assert "chief was lost" in shown


IMPOSSIBLE = [
    ([f"--image={IMAGE}0"], "ImagePullBackOff: Back-off pulling image"),
    (
        ["--cpus_per_worker=9"],
        "worker:0, worker:1: no node for it: 0/3 nodes are avail",
    ),
    (
        ["--cpus_per_worker=5", "--num_workers=5", "--min_workers=4"],
        r"3 of 5 workers run, and 4 are needed \(--min_workers\), after 4 s (?s:.*)"
        r"worker:\d, worker:\d: no node for it: 0/3 nodes are avail",
    ),
    (["--memory_per_ps=100Mi", "--cpus_per_ps=999m"], "exceeded quota: small"),
    (["--namespace=nowhere"], r'namespaces \\?"nowhere\\?" not found'),
]


@pytest.mark.in_part(
    "flags0-ImagePullBackOff: Back-off pulling image", "flags3-exceeded quota: small"
)
@pytest.mark.parametrize(("flags", "message"), IMPOSSIBLE)
def test_what_kubernetes_does_not_have(launcher, cluster, flags, message):
    quota = "/api/v1/namespaces/default/resourcequotas"
    if "quota" in message:
        spec = {"hard": {"requests.cpu": "1"}}
        cluster.api("POST", quota, {"metadata": {"name": "small"}, "spec": spec})
    try:
        status, output, errors = launcher.run(
            *flags, "--connect_timeout=4", launcher.script("print('never')")
        )
    finally:
        if "quota" in message:
            cluster.api("DELETE", f"{quota}/small")
    assert (status, output) == (2, ""), errors
    assert ": ended with " in launcher.jobs("status", "mine").stdout
    assert re.search(message, errors.split("error: ")[-1]), errors
    assert not launcher.log("chief")
