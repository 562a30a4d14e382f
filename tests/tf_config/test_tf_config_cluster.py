"""Cluster, Task and addresses: what they accept, and the words of each refusal."""

import dataclasses

import pytest

from tf_config import JOBS, Cluster, ClusterError, Task, split_address

PS_CLUSTER = Cluster.from_hosts(
    chief="a:1", ps="b:1,c:1", worker="d:1,e:1", evaluator="f:1"
)


def error_of(call, *args, **kwargs) -> str:
    with pytest.raises(ClusterError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


class TestPackage:
    def test_an_error_is_a_value_error(self):
        assert issubclass(ClusterError, ValueError)


class TestTask:
    def test_reads_writes_and_names_its_device(self):
        task = Task.parse("worker:12")
        assert task == Task("worker", 12)
        assert str(task) == "worker:12"
        assert task.device == "/job:worker/task:12"

    def test_sorts_by_role_then_by_number(self):
        tasks = [Task("worker", 10), Task("evaluator", 0), Task("worker", 2)]
        tasks += [Task("chief", 0), Task("ps", 1)]
        expected = ["chief:0", "ps:1", "worker:2", "worker:10", "evaluator:0"]
        assert list(map(str, sorted(tasks))) == expected
        assert Task("ps", 0) <= Task("ps", 0)
        with pytest.raises(TypeError):
            assert Task("ps", 0) < "ps:1"

    def test_is_a_key(self):
        assert {Task("ps", 0): 1}[Task.parse("ps:0")] == 1

    @pytest.mark.parametrize(
        ("job", "index", "words"),
        [
            ("PS", 0, "did you mean 'ps'?"),
            ("workers", 0, "did you mean 'worker'?"),
            ("master", 0, "did you mean 'chief'?"),
            ("parameter_server", 0, "did you mean 'ps'?"),
            (7, 0, "unknown job 7"),
            ("ps", "0", "without quotes"),
            ("ps", 0.0, "received 0.0"),
            ("ps", True, "received True"),
            ("ps", -1, "a task index must be at least 0; received -1"),
        ],
    )
    def test_refuses(self, job, index, words):
        assert words in error_of(Task, job, index)

    @pytest.mark.parametrize(
        "text", ["", "ps", "ps:", ":0", "ps:-1", "ps:01", "ps:1:2", "ps:x", "ps: 1"]
    )
    def test_refuses_to_parse(self, text):
        message = error_of(Task.parse, text)
        assert "JOB:INDEX" in message or "unknown job ''" in message

    def test_a_long_name_is_shortened(self):
        assert len(error_of(Task, "x" * 10_000, 0)) < 250


class TestCluster:
    def test_lists_its_tasks_by_role(self):
        assert list(map(str, PS_CLUSTER.tasks())) == [
            "chief:0",
            "ps:0",
            "ps:1",
            "worker:0",
            "worker:1",
            "evaluator:0",
        ]
        assert sorted(PS_CLUSTER.tasks()) == list(PS_CLUSTER.tasks())
        assert PS_CLUSTER.jobs() == JOBS

    def test_knows_the_address_of_each_task(self):
        addresses = [PS_CLUSTER.address(task) for task in PS_CLUSTER.tasks()]
        assert addresses == ["a:1", "b:1", "c:1", "d:1", "e:1", "f:1"]
        assert Task("ps", 1) in PS_CLUSTER
        assert Task("ps", 2) not in PS_CLUSTER
        assert "ps:0" not in PS_CLUSTER

    def test_leaves_out_empty_jobs(self):
        cluster = Cluster.from_dict({"worker": ["a:1"], "ps": []})
        assert cluster.as_dict() == {"worker": ["a:1"]}
        assert cluster.jobs() == ("worker",)
        assert not cluster.has_parameter_servers

    def test_the_cluster_spec_has_no_evaluator(self):
        spec = PS_CLUSTER.cluster_spec()
        assert list(spec) == ["chief", "ps", "worker"]
        assert PS_CLUSTER.as_dict() == {**spec, "evaluator": ["f:1"]}
        assert PS_CLUSTER.has_parameter_servers

    def test_takes_texts_and_sequences(self):
        text = Cluster.from_hosts(chief="a:1", ps="b:1", worker="c:1,d:1")
        mixed = Cluster.from_hosts("a:1", ("c:1", "d:1"), ["b:1"])
        assert (
            text == mixed == Cluster(chief=("a:1",), ps=("b:1",), worker=("c:1", "d:1"))
        )
        assert hash(text) == hash(mixed)

    def test_stays_valid(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            PS_CLUSTER.ps = ()
        assert "no chief" in error_of(dataclasses.replace, PS_CLUSTER, chief=())

    @pytest.mark.parametrize(
        "hosts",
        [
            {"chief": "a:1"},
            {"worker": "a:1"},
            {"chief": "a:1", "worker": "b:1"},
            {"chief": "a:1", "worker": "b:1", "ps": "c:1"},
            {"worker": "a:1", "evaluator": "b:1"},
            {"worker": "a:1,a:2,b:1"},
            {"worker": "[::1]:1,[::1]:2,10.0.0.1:65535"},
            {"worker": "my_service-0.pods.svc.cluster.local:2222,localhost:1"},
        ],
    )
    def test_accepts(self, hosts):
        assert Cluster.from_hosts(**hosts).jobs()

    @pytest.mark.parametrize(
        ("hosts", "words"),
        [
            ({}, "no task that trains"),
            ({"evaluator": "a:1"}, "give the address of a chief, or of at least one"),
            ({"ps": "a:1", "worker": "b:1"}, "parameter servers and no chief"),
            ({"ps": "a:1", "chief": "b:1"}, "parameter servers and no worker"),
            ({"chief": "a:1,b:1"}, "one chief; received 2 addresses, ('a:1', 'b:1')"),
            ({"chief": "a:1", "evaluator": "b:1,c:1"}, "one evaluator; received 2"),
            ({"worker": "a:1,b:1,a:1"}, "worker:0 and worker:2 have the same address"),
            (
                {"chief": "a:1", "ps": "b:1", "worker": "B:1"},
                "same address 'B:1': give",
            ),
            ({"worker": "a:1,"}, "the address of worker:1, '', is empty"),
            ({"worker": "a:1,,b:1"}, "remove the extra comma"),
            ({"worker": ["a:1,b:1"]}, "'a:1,b:1', contains a comma"),
            ({"worker": "a:1, b:1"}, "worker:1, ' b:1', contains white space: remove"),
            ({"worker": "host"}, "the address of worker:0, 'host', has no port"),
            ({"worker": [2222]}, "the address of worker:0, 2222, is not a string"),
            ({"worker": {"0": "a:1"}}, 'addresses of worker are a list such as ["host'),
        ],
    )
    def test_refuses(self, hosts, words):
        assert words in error_of(Cluster.from_hosts, **hosts)

    @pytest.mark.parametrize(
        ("jobs", "words"),
        [
            ({"PS": ["a:1"]}, "unknown job 'PS'; it is one of chief, ps, worker, eval"),
            ({"master": ["a:1"]}, "did you mean 'chief'?"),
            ({1: ["a:1"]}, "unknown job 1"),
            ({"worker": "a:1"}, "the addresses of worker are a list"),
            (["a:1"], "a cluster gives each job its list of addresses"),
        ],
    )
    def test_refuses_the_dict(self, jobs, words):
        assert words in error_of(Cluster.from_dict, jobs)

    @pytest.mark.parametrize("task", ["ps:2", "worker:7"])
    def test_has_no_address_for_a_stranger(self, task):
        assert error_of(PS_CLUSTER.address, Task.parse(task)) == (
            f"{task} is not in the cluster, which has chief:0, ps:0 to ps:1, "
            "worker:0 to worker:1, evaluator:0: name one of these, or add its address"
        )


class TestAddress:
    @pytest.mark.parametrize(
        ("address", "parts"),
        [
            ("a:1", ("a", 1)),
            ("ps-0.example.com.:65535", ("ps-0.example.com.", 65535)),
            ("10.0.0.1:2222", ("10.0.0.1", 2222)),
            ("[::1]:2222", ("::1", 2222)),
            ("[2001:DB8::7]:80", ("2001:DB8::7", 80)),
        ],
    )
    def test_splits(self, address, parts):
        assert split_address(address) == parts

    @pytest.mark.parametrize(
        ("address", "words"),
        [
            ("", "is empty: write host:port"),
            (2222, "the address 2222 is not a string"),
            ("host", "has no port: write host:port, for example 'host:2222'"),
            ("[::1]", "for example '[::1]:2222'"),
            (":2222", "has no host: write the machine's name before ':2222'"),
            ("::1:2222", "[IPv6]:port"),
            ("a:1:2", "has more than one colon"),
            ("host:http", "the port 'http': a port is a number from 1 to 65535"),
            ("host:0", "has the port '0'"),
            ("host:65536", "has the port '65536'"),
            ("host:" + "9" * 5000, "from 1 to 65535"),
            ("host:\u0661", "a port is a number"),
            ("grpc://host:1", "has the scheme 'grpc': write 'host:1'"),
            ("host :1", "white space"),
            ("host:1\n", "white space"),
            ("a:1,b:1", "comma"),
            ("[]:1", "has the host '[]'"),
            ("[host]:1", "IPv6 address in brackets"),
            ("[fe80::1%eth0]:1", "has the host '[fe80::1%eth0]'"),
            ("10.0.0.256:1", "has the host '10.0.0.256'"),
            ("2222:2222", "has the host '2222'"),
            ("h\u00f6st:1", "a host is a machine's name"),
            ("-host:1", "has the host '-host'"),
            ("\ud800:1", "a host is a machine's name"),
        ],
    )
    def test_refuses(self, address, words):
        assert words in error_of(split_address, address)
