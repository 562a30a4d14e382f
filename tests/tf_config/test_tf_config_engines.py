"""Clusters that engines describe, in the environments that their documentation shows."""

import json
import socket
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import task
from launch.flags.errors import UsageError
from launch.job.plan import TaskPlan
from launch.network import ports
from launch.supervise import serving
from launch.supervise.serving import ChiefPresence
from tf_config import Cluster, ClusterError, Task, TFConfig, engines, slurm
from tf_config.roles import assign_roles


def sagemaker(current="algo-1", hosts=("algo-1", "algo-2", "algo-3", "algo-10")):
    return {
        **{"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": current},
        **{"SM_NUM_GPUS": "0", "SM_NUM_CPUS": "4", "SM_NETWORK_INTERFACE_NAME": "eth0"},
    }


def test_the_first_hosts_of_sagemaker_are_ps():
    found = {
        host: engines.from_engine(sagemaker(host), num_ps=1)
        for host in ("algo-1", "algo-2", "algo-3", "algo-10")
    }
    assert [str(each.task) for each in found.values()] == [
        *("ps:0", "chief:0", "worker:0", "worker:1")
    ]
    assert {each.cluster for each in found.values()} == {
        Cluster.from_hosts(
            chief="algo-2:2222", ps="algo-1:2222", worker="algo-3:2222,algo-10:2222"
        )
    }


def test_without_ps_the_hosts_of_sagemaker_work_in_step():
    config = engines.from_engine(sagemaker("algo-10"), first_port=7000)
    assert str(config.task) == "worker:3"
    assert config.cluster.jobs() == ("worker",)
    assert config.cluster.worker[3] == "algo-10:7000"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SM_HOSTS": "algo-1"}, "SM_HOSTS is a list of hosts such as"),
        ({"SM_HOSTS": "[]"}, "SM_HOSTS is a list"),
        ({"SM_HOSTS": "[1]"}, "SM_HOSTS is a list"),
        (sagemaker("algo-4"), "SM_CURRENT_HOST is one of algo-1, algo-2, .* 'algo-4'"),
        ({"SM_HOSTS": '["a"]'}, "SM_CURRENT_HOST is one of a; received None"),
        (sagemaker("b", ["a", "b"]), "2 tasks are too few for 1 ps, a chief and a wor"),
    ],
)
def test_a_malformed_environment_of_sagemaker(environ, message):
    with pytest.raises(ClusterError, match=message):
        engines.from_engine(environ, num_ps=1)


def srun(rank=0, node=0, nodes="n[2,10]", tasks="2(x2)", **more):
    return {
        **{"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": tasks},
        **{"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node)},
        **{"SLURM_JOB_ID": "1001", "SLURM_NTASKS": "4", **more},
    }


@pytest.mark.parametrize(
    ("distribution", "nodes"), [("block", [0, 0, 1, 1]), ("cyclic", [0, 1, 0, 1])]
)
def test_the_ps_of_a_step_are_on_different_nodes(distribution, nodes):
    found = [
        engines.from_engine(
            srun(rank, node, SLURM_DISTRIBUTION=distribution), num_ps=2, first_port=2222
        )
        for rank, node in enumerate(nodes)
    ]
    # n2 before n10, as Slurm has them.
    assert {each.cluster for each in found} == {
        Cluster.from_hosts(chief="n2:2223", ps="n2:2222,n10:2222", worker="n10:2223")
    }
    assert {str(each.task) for each in found} == {"ps:0", "ps:1", "chief:0", "worker:0"}
    for each, node in zip(found, nodes, strict=True):
        host = each.cluster.address(each.task).partition(":")[0]
        assert host == ["n2", "n10"][node]


def test_jobs_on_one_node_have_ports_of_their_own():
    used = [
        engines.from_engine(srun(nodes="n1", tasks="64", SLURM_JOB_ID=str(job)))
        for job in range(340)
    ]
    addresses = [each for config in used for each in config.cluster.worker]
    assert len({*addresses}) == len(addresses)
    assert max(int(each.partition(":")[2]) for each in addresses) < 32768


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("gnode[10,20,25,37]", ["gnode10", "gnode20", "gnode25", "gnode37"]),
        ("gpu-[01-02]-x", ["gpu-01-x", "gpu-02-x"]),
        ("r[0-1]n[8-10]", ["r0n8", "r0n9", "r0n10", "r1n8", "r1n9", "r1n10"]),
        ("b,a[2,1]", ["b", "a2", "a1"]),
    ],
)
def test_node_lists(text, nodes):
    assert slurm.expand_nodes(text) == nodes


@pytest.mark.parametrize(
    "text", ["", ",", "a,", "n[1-2", "n1]", "n[]", "n[2-1]", "n[a]", "n[1-999999999]"]
)
def test_malformed_node_lists(text):
    with pytest.raises(ClusterError):
        slurm.expand_nodes(text)


@given(st.text("n-[0123],x", max_size=12))
def test_whatever_a_node_list_is(text):
    try:
        assert all(slurm.expand_nodes(text))
    except ClusterError:
        return


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (srun(tasks="2"), "SLURM_STEP_TASKS_PER_NODE=2 is for 1 nodes, and .* has 2"),
        (srun(tasks="two"), r"is written 2\(x3\),1; received 'two'"),
        (srun(tasks="99999(x99999)"), "are more than 100000 nodes or tasks"),
        (srun(rank=3), "SLURM_PROCID=3 is not on the node that SLURM_NODEID=0 says"),
        (srun(rank=9), "SLURM_PROCID=9 is not on the node"),
        (srun(SLURM_PROCID="x"), "SLURM_PROCID is a number that srun sets"),
        (srun(SLURM_DISTRIBUTION="arbitrary"), "srun --distribution=block or"),
    ],
)
def test_a_malformed_environment_of_slurm(environ, message):
    with pytest.raises(ClusterError, match=message):
        engines.from_engine(environ)


def with_config(value):
    return {"TF_CONFIG": json.dumps(value)}


def test_a_tfjob_with_a_master():
    environ = with_config(
        {
            "cluster": {
                "master": ["job-master-0.ns.svc:2222"],
                "ps": ["job-ps-0.ns.svc:2222"],
                "worker": ["job-worker-0.ns.svc:2222"],
            },
            "task": {"type": "master", "index": 0},
            "environment": "cloud",
        }
    )
    config = engines.from_engine(environ)
    assert config.cluster.chief == ("job-master-0.ns.svc:2222",)
    assert config.task == Task("chief", 0)


@pytest.mark.parametrize(
    ("index", "expected"), [(0, "chief:0"), (1, "worker:0"), (2, "worker:1")]
)
def test_worker_0_of_a_tfjob_without_a_chief_is_the_chief(index, expected):
    cluster = {"ps": ["p:1"], "worker": ["a:1", "b:1", "c:1"]}
    task = {"type": "worker", "index": index}
    config = engines.from_engine(with_config({"cluster": cluster, "task": task}))
    assert str(config.task) == expected
    assert config.cluster == Cluster.from_hosts(chief="a:1", ps="p:1", worker="b:1,c:1")
    ps = {"type": "ps", "index": 0}
    same = engines.from_engine(with_config({"cluster": cluster, "task": ps}))
    assert same == TFConfig(config.cluster, Task("ps", 0))


def test_a_tfjob_with_dynamic_workers():
    sparse = {"worker": {"0": "a:1"}, "ps": ["p:1"]}
    value = {"sparseCluster": sparse, "task": {"type": "worker", "index": 0}}
    with pytest.raises(ClusterError, match="set enableDynamicWorker: false"):
        engines.from_engine(with_config(value))


def test_the_workers_of_ray_train():
    value = {
        "cluster": {"worker": ["10.0.0.1:51234", "10.0.0.2:40007"]},
        "task": {"type": "worker", "index": 1},
    }
    config = engines.from_engine(with_config(value))
    assert config.cluster.address(config.task) == "10.0.0.2:40007"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["cluster", "task", "type", "index", "ps", "worker"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )
)
def test_whatever_an_engine_says_is_a_cluster_or_an_error(value):
    for environ in (
        with_config(value),
        {"SM_HOSTS": json.dumps(value), "SM_CURRENT_HOST": str(value)},
    ):
        try:
            config = engines.from_engine(environ)
        except ClusterError:
            continue
        assert TFConfig.from_json(config.to_json()).task == config.task


def test_ps_that_two_sources_decide_on():
    cluster = {"worker": ["a:1"]}
    environ = with_config({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    with pytest.raises(ClusterError, match="TF_CONFIG says which tasks are ps, and so"):
        engines.from_engine(environ, num_ps=1)
    # SageMaker's TensorFlow image sets a TF_CONFIG of its own.
    config = engines.from_engine({**environ, **sagemaker("algo-1")}, num_ps=1)
    assert config.task == Task("ps", 0)


def test_no_engine():
    with pytest.raises(ClusterError, match=r"neither TF_CONFIG .* SLURM_STEP_NODELIST"):
        engines.from_engine({})


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    st.integers(0, 5),
    st.data(),
)
def test_every_process_has_one_role_in_the_same_cluster(hosts, num_ps, data):
    if num_ps and len(hosts) < num_ps + 2:
        with pytest.raises(ClusterError):
            assign_roles(hosts, 0, num_ps, 7000)
        return
    configs = [assign_roles(hosts, rank, num_ps, 7000) for rank in range(len(hosts))]
    assert len({each.cluster for each in configs}) == 1
    assert [*{each.task for each in configs}].__len__() == len(hosts)
    for host, config in zip(hosts, configs, strict=True):
        assert config.cluster.address(config.task).startswith(f"{host}:")
    on = {each.rpartition(":")[0] for each in configs[0].cluster.ps}
    assert len(on) == min(num_ps, len({*hosts}))


# launch.task


@pytest.fixture
def environ(monkeypatch, tmp_path):
    for name in ("TF_CONFIG", "SM_HOSTS", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)

    def set_all(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


def dry_run(capsys, *flags):
    assert task.main(["launch.task", "--dry_run", *flags, "train.py"]) == 0
    return capsys.readouterr().out


def test_a_task_without_flags_is_what_the_engine_says(environ, capsys):
    environ(sagemaker("algo-1"))
    assert "-m tfdist.server" in dry_run(capsys, "--num_ps=1")
    environ(sagemaker("algo-2"))
    assert dry_run(capsys, "--num_ps=1").endswith(" train.py\n")
    assert '"type":"worker","index":1' in dry_run(capsys)


def test_the_evaluator_of_a_tfjob_is_outside_of_its_cluster(environ, capsys):
    cluster = {"chief": ["c:1"], "ps": ["p:1"], "worker": ["w:1"]}
    evaluator = {"type": "evaluator", "index": 0}
    environ(with_config({"cluster": cluster, "task": evaluator}))
    output = dry_run(capsys)
    assert '"task":{"type":"evaluator","index":0}' in output
    assert "localhost" not in output


def test_a_task_that_nobody_describes(environ):
    with pytest.raises(
        UsageError, match=r"no engine .* Or describe the cluster: --job_"
    ):
        task.main(["launch.task", "train.py"])
    with pytest.raises(UsageError, match="--num_ps is for a cluster that an engine"):
        task.main(["launch.task", "--num_ps=1", "--job_name=ps", "train.py"])


def a_server(code="import time; time.sleep(600)"):
    return TaskPlan(Task("ps", 0), "localhost:1", (sys.executable, "-c", code))


def _end_when_seen(chief):
    connection, _ = chief.accept()
    connection.close()
    chief.close()


def test_a_server_ends_some_time_after_its_chief(monkeypatch):
    monkeypatch.setattr(serving, "_INTERVAL", 0.05)
    (port,) = ports.pick(1)
    told = []
    chief = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=_end_when_seen, args=[chief]).start()
    status = serving.run(a_server(), {}, f"127.0.0.1:{port}", 0.5, told.append)
    assert status == 0
    assert told == [f"the chief at 127.0.0.1:{port} has gone: ending this server"]


def test_the_status_of_a_server_that_ends_by_itself(monkeypatch):
    monkeypatch.setattr(serving, "_INTERVAL", 0.05)
    (port,) = ports.pick(1)
    server = a_server("import sys; sys.exit(7)")
    assert serving.run(server, {}, f"127.0.0.1:{port}") == 7


def test_a_chief_that_has_not_come_is_waited_for():
    chief = ChiefPresence(1)
    assert not chief.is_over(False, 1e9)
    assert not chief.is_over(True, 2e9)
    assert not chief.is_over(False, 2e9 + 1)
    assert not chief.is_over(True, 2e9 + 5)  # It was restarted.
    assert chief.is_over(False, 2e9 + 7)
