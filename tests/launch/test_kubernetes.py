"""What `launch.kubernetes` decides, without a cluster; see also test_kubernetes_nodes.py."""

import http.server
import json
import re
import socket
import sys
import threading
from base64 import b64decode
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launch import kubernetes
from launch.engines import kubernetes as engine
from launch.engines import (
    kubernetes_client,
    kubernetes_objects,
    kubernetes_pods,
    kubernetes_state,
)
from launch.engines.engine import ENDED, EngineError, Status
from launch.engines.kubernetes_client import KubernetesClient
from launch.engines.kubernetes_objects import KubernetesJob
from launch.engines.kubernetes_pods import LAUNCHER, Pods, resources_of
from launch.flags import cluster_flags
from launch.flags.config_file import NOT_SETTINGS
from launch.flags.errors import UsageError
from launch.job.plan import task_name
from launch.remote import greeting
from launch.secure import mode
from tf_config import Task, contract

from ..kubernetes.kubernetes_kubelet import expand
from ..kubernetes.kubernetes_schemas import KINDS, problems
from .test_launch_fuzz import snares

pytest.importorskip("kubernetes", reason="pip install '.[kubernetes]'")
yaml = pytest.importorskip("yaml")

KEY = "00112233"
counts = st.fixed_dictionaries(
    {"ps": st.integers(0, 4), "worker": st.integers(1, 4), "chief": st.integers(0, 1)}
)


@pytest.fixture(autouse=True)
def without_a_cluster(monkeypatch, here):
    monkeypatch.setenv("KUBECONFIG", str(here / "absent"))


def a_job(counts=None, *, has_failure_policy=True, **changed):
    pods = Pods(
        **{"name": "mine", "image": "image:1", "command": ["python"], **changed},
    )
    counts = {"chief": 1, "ps": 2, "worker": 2} if counts is None else counts
    return KubernetesJob(pods, counts, KEY, has_failure_policy)


def pod_specs(objects):
    """The `spec` of each template, by its role."""
    found = {}
    for each in objects:
        if each["kind"] == "Job":
            template = each["spec"]["template"]
            role = template["metadata"]["labels"]["app.kubernetes.io/component"]
            found.setdefault(role, template["spec"])
    return found


# The objects.


@given(counts, st.booleans())
def test_every_field_is_one_of_the_published_schemas(counts, policy):
    job = a_job(
        counts,
        has_failure_policy=policy,
        env={"A": "b"},
        work_dir="/x",
        resources={"worker": resources_of("2", "4Gi", 1, "nvidia.com/gpu")},
        ps_node_selector={"link": "25g"},
    )
    for each in kubernetes_objects.render(job):
        assert problems(each, KINDS[each["kind"]], each["kind"]) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (("podFailurePolicies", {}), "V1JobSpec has no podFailurePolicies"),
        (("completions", "2"), "'2' is no"),
        (("podFailurePolicy", {}), "V1PodFailurePolicy needs rules"),
    ],
)
def test_a_wrong_field_is_noticed(damage, problem):
    *_, launcher = kubernetes_objects.render(a_job())
    launcher["spec"][damage[0]] = damage[1]
    (found,) = problems(launcher, KINDS["Job"])
    assert problem in found


@given(counts)
def test_every_task_has_the_name_that_the_others_know(counts):
    objects = kubernetes_objects.render(a_job(counts))
    at = kubernetes._layout("mine", counts)
    jobs = [each["spec"]["template"] for each in objects if each["kind"] == "Job"]
    names = [each["spec"].get("hostname") for each in jobs]
    assert sorted(filter(None, names)) == sorted(host.name for host in at.hosts)
    assert all(address.endswith(".mine") for address in at.addresses)
    # Of its own task, a pod and whoever looks at it know the same.
    for template in jobs:
        (container,) = template["spec"]["containers"]
        env = {each["name"]: each["value"] for each in container["env"]}
        if (role := env.get("LAUNCHER_TASK_JOB")) is not None:
            task = Task(role, int(env["LAUNCHER_TASK_INDEX"]))
            assert kubernetes_objects.task_of(template) == task_name(task)


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_role_of_the_example_has_what_the_client_asks_for_and_no_more():
    role, _ = yaml.safe_load_all((EXAMPLES / "kubernetes_role.yaml").read_text())
    given = {
        (verb, what)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for what in rule["resources"]
    }
    plurals = {kind: f"{kind.lower()}s" for kind in kubernetes_client.KINDS}
    plurals["NetworkPolicy"] = "networkpolicies"
    made = {each["kind"] for each in kubernetes_objects.render(a_job())}
    assert given == {
        *(("create", plurals[kind]) for kind in made),
        *(("list", what) for what in (*plurals.values(), "events")),
        *(("delete", what) for what in plurals.values()),
        ("get", "pods/log"),
    }


def test_the_dockerfile_copies_what_there_is_and_installs_stunnel():
    lines = (EXAMPLES / "Dockerfile").read_text().splitlines()
    copied = [each.split()[1:-1] for each in lines if each.startswith("COPY ")]
    assert copied
    assert all((EXAMPLES.parent / name).exists() for names in copied for name in names)
    assert any("install" in each and "stunnel4" in each for each in lines)
    (base,) = (each.split()[1] for each in lines if each.startswith("FROM "))
    assert re.fullmatch(r"python:3\.\d+-[\w-]+", base)


def test_only_the_secret_has_the_key():
    for each in kubernetes_objects.render(a_job()):
        text = json.dumps(each)
        if each["kind"] == "Secret":
            assert b64decode(each["data"]["key"]).decode() == KEY
        else:
            assert KEY not in text
            assert each["kind"] != "NetworkPolicy" or "hostNetwork" not in text


def test_a_disruption_is_retried_and_an_error_is_not():
    objects = kubernetes_objects.render(a_job())
    for job in [each["spec"] for each in objects if each["kind"] == "Job"]:
        rules = job["podFailurePolicy"]["rules"]
        name = job["template"]["spec"]["containers"][0]["name"]
        assert action(rules, name, 7) == "FailJob"
        assert action(rules, name, 143) == "Count"
        assert action(rules, name, 1, disrupted=True) == "Ignore"
        assert job["template"]["spec"]["restartPolicy"] == "Never"
    for each in kubernetes_objects.render(a_job(has_failure_policy=False)):
        assert "podFailurePolicy" not in each.get("spec", {})


def action(rules, container, code, disrupted=False):
    """What Kubernetes does with a pod that failed: the first rule that matches."""
    for rule in rules:
        for pattern in rule.get("onPodConditions", ()):
            if disrupted and pattern["type"] == "DisruptionTarget":
                return rule["action"]
        if (codes := rule.get("onExitCodes")) and codes["containerName"] == container:
            is_in = code in codes["values"]
            if is_in == (codes["operator"] == "In"):
                return rule["action"]
    return "Count"


def test_only_pods_of_the_job_get_in():
    objects = kubernetes_objects.render(a_job())
    (policy,) = [each for each in objects if each["kind"] == "NetworkPolicy"]
    pods = {
        role: Pods("mine", "", ()).labels(role) for role in ("ps", "worker", LAUNCHER)
    }
    strangers = [{}, Pods("other", "", ()).labels("ps"), {"app": "mine"}]
    strangers.append({"app.kubernetes.io/instance": "mine"})
    for to in pods.values():
        for source in pods.values():
            assert lets_in(policy, to, source, same_namespace=True)
            assert not lets_in(policy, to, source, same_namespace=False)
        for source in strangers:
            assert not lets_in(policy, to, source, same_namespace=True)


def lets_in(policy, to, source, same_namespace):
    """Evaluates the rules that a NetworkPolicy has for what comes into a pod."""

    def selects(selector, labels):
        assert selector.keys() <= {"matchLabels"}
        return selector["matchLabels"].items() <= labels.items()

    spec = policy["spec"]
    assert "Ingress" in spec["policyTypes"]
    if not selects(spec["podSelector"], to):
        return True
    for rule in spec["ingress"]:
        for peer in rule["from"]:
            # Without a namespaceSelector, the policy's own namespace is meant.
            assert peer.keys() == {"podSelector"}
            if same_namespace and selects(peer["podSelector"], source):
                return True
    return False


def test_ps_and_their_nodes():
    specs = pod_specs(
        kubernetes_objects.render(a_job(ps_node_selector={"link": "25g"}))
    )
    (rule,) = specs["ps"]["affinity"]["podAntiAffinity"].values()
    assert rule[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert specs["ps"]["nodeSelector"] == {"link": "25g"}
    assert "affinity" not in specs["worker"]
    assert "nodeSelector" not in specs["worker"]


@pytest.mark.not_in_gate
@settings(max_examples=200)
@given(st.lists(snares, min_size=1, max_size=4), snares)
@example(["$(HOME)"], "$(HOME)")
def test_json_carries_everything_through_kubernetes(args, value):
    job = a_job(command=["python", *args], env={"A": value})
    text = engine.render(job)
    objects = json.loads(text)["items"]
    assert objects == kubernetes_objects.render(job)
    assert text.isascii()
    container = pod_specs(objects)[LAUNCHER]["containers"][0]
    env = {"HOME": "expanded"}
    assert [expand(each, env) for each in container["command"]] == ["python", *args]
    (given,) = [each["value"] for each in container["env"] if each["name"] == "A"]
    assert expand(given, env) == value


# The user's part of a pod.


def test_a_part_of_a_pod_is_merged():
    extra = {
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [{"volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    }
    checked = kubernetes_pods.check_extra(extra)
    specs = pod_specs(kubernetes_objects.render(a_job(extra=checked)))
    for role, spec in specs.items():
        assert [each["name"] for each in spec["volumes"]] == ["launcher-key", "data"]
        (container,) = spec["containers"]
        assert container["name"] == role
        assert [each["mountPath"] for each in container["volumeMounts"]][1] == "/data"
        assert spec["tolerations"] == extra["tolerations"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hostNetwork: true", "a pod cannot have hostNetwork (with it, TensorFlow's"),
        ("hostPID: true", "a pod cannot have hostPID (the launcher decides that)"),
        ("restartPolicy: Always", "cannot have restartPolicy"),
        ("[1]", "a pod's spec is a mapping"),
        ("a: [", "pod.yaml is no YAML"),
        ("containers: [{command: [sh]}]", "a pod cannot have command"),
        ("containers: [{}, {}]", "containers has one entry"),
        ("containers: 3", "containers has one entry"),
    ],
)
def test_a_part_of_a_pod_that_cannot_be(tmp_path, text, message):
    (tmp_path / "pod.yaml").write_text(text)
    command = ["launch.kubernetes", "--dry_run", "--image=x", "--pod_spec=pod.yaml"]
    with pytest.raises((EngineError, UsageError), match=re.escape(message)):
        kubernetes.main([*command, "train.py"])


# The command.


def test_every_flag_about_the_tasks_reaches_the_launchers_pod():
    values = cluster_flags.Flags()
    cluster_flags.define(values)
    here = {"module", "m", "log_dir", *NOT_SETTINGS}
    assert {*values} - {*kubernetes._INSIDE} == here


def in_pod(monkeypatch, *typed, has_policy=True, script="print()"):
    """A job as it is typed, and what its launcher makes of it in the pod.

    Returns:
        Its counts, the program that was typed, and the arguments of what runs in the pod.
    """
    values, program = kubernetes.command_line.parse(
        ["x", "--image=x", *typed], kubernetes._define_flags(), ""
    )
    counts = kubernetes.engine_flags.counts(values, "auto", 99)
    job = kubernetes._job(values, program, "mine", counts, has_policy)
    Path("train.py").write_text(script)
    monkeypatch.setenv(kubernetes_pods.JOB_VARIABLE, "mine")
    monkeypatch.setenv(contract.COMMAND, job.pods.env[contract.COMMAND])
    with mock.patch.object(kubernetes, "_run_in_pod", return_value=5) as run:
        assert kubernetes.main(job.pods.command[2:]) == 5
    return counts, program, run.call_args


@pytest.mark.parametrize(
    "strategy",
    ["MultiWorkerMirroredStrategy", "ParameterServerStrategy", "RingStrategy"],
)
@pytest.mark.parametrize("flags", [[], ["--num_ps=0"], ["--num_ps=0", "--chief"]])
def test_a_script_that_only_the_image_has_changes_no_counts(
    strategy, flags, monkeypatch
):
    script = f"import tfdist\ntfdist.{strategy}()\n"
    counts, typed, ((at, planner), _) = in_pod(
        monkeypatch, *flags, "train.py", script=script
    )
    assert at == kubernetes._layout("mine", counts)
    # The user typed another command than the pod runs.
    assert planner.program.command == typed.command != ""


def test_a_dry_run_prints_objects(capsys):
    command = ["launch.kubernetes", "--dry_run", "--image=x", "--name=mine"]
    flags = ["--num_ps=3", "--cpus_per_ps=2", "--memory_per_worker=4Gi"]
    flags += ["--gpus_per_worker=1", "--namespace=there", "--max_restarts=7"]
    flags += ["--min_workers=1"]
    with mock.patch.object(engine, "client_of") as client:
        assert kubernetes.main([*command, *flags, "train.py", "a b", "--dry_run"]) == 0
    assert not client.called
    objects = json.loads(capsys.readouterr().out)["items"]
    assert {each["metadata"]["namespace"] for each in objects} == {"there"}
    assert [each["kind"] for each in objects[:3]] == [
        "Secret",
        "NetworkPolicy",
        "Service",
    ]
    specs = pod_specs(objects)
    requests = specs["ps"]["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "2"}
    limits = specs["worker"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "4Gi", "nvidia.com/gpu": "1"}
    command = specs[LAUNCHER]["containers"][0]["command"]
    assert "--min_workers=1" in command
    assert command[-3:] == [
        "train.py",
        "a b",
        "--dry_run",
    ]
    by_name = {each["metadata"]["name"]: each for each in objects}
    assert by_name["mine-launcher"]["spec"]["backoffLimit"] == 7
    # The pods that the job can do without come last.
    last = ["mine-ps-2", "mine-launcher", "mine-worker-0", "mine-worker-1"]
    assert list(by_name)[-4:] == last


@pytest.mark.parametrize("has_policy", [True, False])
@pytest.mark.parametrize("is_said", [True, False])
@pytest.mark.parametrize(
    ("secure", "protection"),
    [("auto", "TLS"), ("tls", "TLS"), ("private", "POLICY"), ("off", "POLICY")],
)
def test_the_launcher_in_its_pod_plans_the_same(
    has_policy, is_said, secure, protection, monkeypatch
):
    flags = ["--num_ps=3", "--noevaluator", "--stall_timeout=7", "--chatty"]
    if is_said:
        flags += [f"--{'' if has_policy else 'no'}pod_failure_policy"]
    typed = (*flags, f"--secure={secure}", "train.py", "--num_ps=9")
    counts, _, ((at, planner), options) = in_pod(
        monkeypatch, *typed, has_policy=has_policy
    )
    assert at == kubernetes._layout("mine", counts)
    assert planner.program.argv == ("train.py", "--num_ps=9")
    assert (planner.kind, planner.options["stall_timeout"]) == ("auto", 7.0)
    assert options == {"has_failure_policy": has_policy}
    assert planner.options["chatty"]
    assert planner.protection == getattr(mode, protection)


@pytest.mark.parametrize(
    ("module", "flags"),
    [("yaml", ["--dry_run", "--pod_spec=pod.yaml"]), ("kubernetes", [])],
)
def test_without_the_packages(module, flags):
    with (
        mock.patch.dict(sys.modules, {module: None}),
        pytest.raises(EngineError, match="pip install 'kubernetes>=28'"),
    ):
        kubernetes.main(["launch.kubernetes", "--image=x", *flags, "train.py"])


def test_without_a_cluster(tmp_path):
    with pytest.raises(EngineError, match="there is no way to Kubernetes in .*absent"):
        KubernetesClient()
    (tmp_path / "config").write_text("contexts: []")
    with pytest.raises(EngineError):
        KubernetesClient(kubeconfig=str(tmp_path / "config"))


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: silent
clusters: [{name: silent, cluster: {server: "http://127.0.0.1:%d"}}]
contexts: [{name: silent, context: {cluster: silent, user: me}}]
users: [{name: me, user: {}}]
"""


@pytest.mark.not_in_gate
def test_a_server_that_never_answers_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(kubernetes_client, "_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "config").write_text(KUBECONFIG % silent.getsockname()[1])
        client = KubernetesClient(kubeconfig=str(tmp_path / "config"))
        with pytest.raises(EngineError, match="does not tell its version: .*timed out"):
            client.version()
        silent.setblocking(False)
        for _ in range(2):
            silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


class Recorder(http.server.BaseHTTPRequestHandler):
    """Takes any object, and keeps the path that it came to."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.send_response(201)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args):
        pass


def test_no_field_is_left_out_in_silence(tmp_path):
    with http.server.HTTPServer(("127.0.0.1", 0), Recorder) as server:
        server.paths = []
        (tmp_path / "config").write_text(KUBECONFIG % server.server_port)
        threading.Thread(target=server.serve_forever).start()
        client = KubernetesClient(kubeconfig=str(tmp_path / "config"))
        for each in kubernetes_objects.render(a_job()):
            client.create(each)
        server.shutdown()
    assert len(server.paths) == 3 + 6
    assert all("fieldValidation=Strict" in each for each in server.paths)


# What Kubernetes says.


def a_pod(role, state=None, phase="Running", index="0", conditions=()):
    annotations = {"tfdist-launch/index": index}
    labels = {"app.kubernetes.io/component": role}
    status = {"phase": phase, "conditions": list(conditions)}
    if state:
        status["containerStatuses"] = [{"state": state}]
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "status": status,
    }


def ended(code, message=""):
    return {"terminated": {"exitCode": code, "message": message, "reason": "Error"}}


def test_how_a_job_ended():
    end = kubernetes_state.end
    assert end([], [a_pod("chief", ended(3, '{"code": 3}'))]) is None
    assert end([], [a_pod(LAUNCHER, {"running": {}})]) is None
    # An eviction leaves no message, and Kubernetes starts another launcher.
    assert end([], [a_pod(LAUNCHER, ended(143))]) is None
    assert end([], [a_pod(LAUNCHER, ended(0, '{"code": 3}'))]) == Status(ENDED, 3)
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    job = {"metadata": {"name": "mine-ps"}, "status": {"conditions": [failed]}}
    assert "given up on mine-ps (BackoffLimitExceeded" in end([job], []).reason
    assert end([job], [a_pod(LAUNCHER, ended(0, '{"code": 0}'))]) == Status(ENDED, 0)


@given(st.text() | st.sampled_from(["[]", "{}", '{"code": null}', '{"code": "x"}']))
def test_whatever_a_pod_tells_at_its_end(message):
    assert kubernetes_state.end([], [a_pod(LAUNCHER, ended(1, message))]) is None


def test_what_a_job_waits_for():
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    starting = {"waiting": {"reason": "ContainerCreating"}}
    pods = [
        a_pod("ps", phase="Pending", conditions=[unscheduled]),
        a_pod("ps", phase="Pending", index="1", conditions=[unscheduled]),
        a_pod("worker", waiting),
        a_pod("chief", starting),
        a_pod(LAUNCHER, {"running": {"startedAt": "now"}}),
    ]
    event = {"reason": "FailedCreate", "message": "exceeded quota"}
    event["involvedObject"] = {"name": "mine-worker-1"}
    other = {**event, "involvedObject": {"name": "others-1"}}
    assert kubernetes_state.missing(pods, [event, other], "mine") == [
        "ps:0, ps:1: no node for it: 0/3 nodes",
        "worker:0: ErrImagePull: no such image",
        "mine-worker-1: exceeded quota",
    ]
    assert kubernetes_state.started(pods) == {LAUNCHER}
    failed = [a_pod("ps", ended(1, "No module named launch\n"), "Failed")]
    assert kubernetes_state.missing(failed, [], "mine") == [
        "ps:0: its program ends with 1: No module named launch"
    ]
    assert kubernetes_state.started(failed) == set()


FIVE = [LAUNCHER, "chief", "ps:0", "worker:0", "worker:1"]


@pytest.mark.parametrize(
    ("started", "min_workers", "lacks"),
    [
        (FIVE, None, ""),
        (FIVE[:4], None, "not every pod runs"),
        (FIVE[:4], 1, ""),
        (FIVE[:4], 2, "1 of 2 workers run, and 2 are needed (--min_workers),"),
        (FIVE[:3], 1, "0 of 2 workers run, and 1 is needed (--min_workers),"),
        (FIVE[1:], 1, "there is no running pod of launcher"),
        (FIVE[3:], 1, "there is no running pod of chief, launcher, ps:0"),
    ],
)
def test_what_a_job_lacks_to_start(started, min_workers, lacks):
    assert kubernetes_state.shortage(FIVE, started, min_workers) == lacks


# The greeting.


def meet(key, other, task="ps:0", meant="ps:0"):
    """What each side of a greeting ends with: the wish, or its error."""
    ours, theirs = socket.socketpair()
    found = {}

    def answer():
        try:
            found["server"] = greeting.answer(theirs, other, task)
        except OSError as error:
            found["server"] = error
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        greeting.call(ours, key, meant, {"for": "process"})
    except OSError as error:
        found["caller"] = error
    ours.close()
    thread.join()
    theirs.close()
    return found


def test_a_launcher_is_known_by_its_key():
    assert meet(b"a", b"a") == {"server": {"for": "process"}}
    strangers = meet(b"a", b"b")
    assert "does not know the key" in str(strangers["server"])
    assert isinstance(strangers["caller"], greeting.StrangerError)
    # The address of a pod may belong to the pod of another task by now.
    moved = meet(b"a", b"a", task="ps:1", meant="ps:0")
    assert "whoever answers is not ps:0" in str(moved["caller"])
    assert isinstance(moved["server"], greeting.StrangerError)


@given(st.binary(max_size=64))
def test_whatever_a_stranger_sends(data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(greeting.StrangerError):
            greeting.answer(theirs, b"key", "ps:0")


def test_the_rank_of_a_pod():
    at = kubernetes._layout("mine", {"ps": 11, "worker": 1})
    assert at.hosts[at.where[Task("ps", 10)]].name == "mine-ps-10"
