"""TF_CONFIG: what is read, what is written, and the words of each refusal."""

import json

import pytest

from tf_config import Cluster, ClusterError, Task, TFConfig

CLUSTER = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}
TASK = {"type": "worker", "index": 1}


def error_of(text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        TFConfig.from_json(text)
    return str(caught.value)


def config(**changes) -> str:
    return json.dumps({"cluster": CLUSTER, "task": TASK, **changes})


class TestReading:
    def test_reads_the_environment(self, monkeypatch):
        monkeypatch.setenv("TF_CONFIG", config())
        expected = TFConfig(Cluster.from_dict(CLUSTER), Task("worker", 1))
        assert TFConfig.from_environment() == expected
        assert TFConfig.from_environment({"TF_CONFIG": config()}) == expected

    @pytest.mark.parametrize(
        ("environ", "state"),
        [
            ({}, "not set"),
            ({"TF_CONFIG": ""}, "empty"),
            ({"TF_CONFIG": " \n"}, "empty"),
        ],
    )
    def test_says_how_to_set_it(self, environ, state):
        with pytest.raises(ClusterError) as caught:
            TFConfig.from_environment(environ)
        message = str(caught.value)
        assert message.startswith(f"TF_CONFIG is {state}:")
        assert "export TF_CONFIG=$(python -m tf_config --worker_hosts=" in message

    def test_an_empty_environment_is_not_the_real_one(self, monkeypatch):
        monkeypatch.setenv("TF_CONFIG", config())
        with pytest.raises(ClusterError):
            TFConfig.from_environment({})

    def test_lets_through_what_schedulers_add(self):
        plain = TFConfig.from_json(config())
        text = config(
            environment="cloud",
            rpc_layer="grpc",
            session_master="",
            job={"scale": "CUSTOM"},
            task={**TASK, "trial": "1", "cloud": "x"},
        )
        assert TFConfig.from_json(text) == plain

    def test_the_evaluator_may_stand_outside_the_cluster(self):
        evaluator = {"type": "evaluator", "index": 0}
        outside = TFConfig.from_json(config(task=evaluator))
        assert outside.task not in outside.cluster
        inside = TFConfig.from_json(
            config(task=evaluator, cluster={**CLUSTER, "evaluator": ["e:1"]})
        )
        assert inside.task in inside.cluster


class TestWriting:
    def test_writes_one_word(self):
        text = TFConfig.from_json(config()).to_json()
        assert json.loads(text) == {"cluster": CLUSTER, "task": TASK}
        assert len(text.split()) == 1

    @pytest.mark.parametrize("task", ["chief:0", "evaluator:0"])
    def test_keeps_the_evaluator_out_of_the_cluster(self, task):
        cluster = Cluster.from_dict({**CLUSTER, "evaluator": ["e:1"]})
        written = json.loads(TFConfig(cluster, Task.parse(task)).to_json())
        assert written["cluster"] == CLUSTER
        assert written["task"]["type"] == task.split(":")[0]


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[]", 'TF_CONFIG is an object {"cluster": ..., "task": ...}; received []'),
            ("{}", 'TF_CONFIG has no "cluster"'),
            (json.dumps({"cluster": CLUSTER}), 'TF_CONFIG has no "task"'),
            (config(clusters=1), "did you mean 'cluster'?"),
            (config(nonsense=1), "it is one of cluster, task"),
            (config(task=3), 'the task of TF_CONFIG is an object {"type"'),
            (config(task={"index": 0}), 'the task of TF_CONFIG has no "type"'),
            (config(task={"type": "ps"}), 'the task of TF_CONFIG has no "index"'),
            (config(task={**TASK, "idx": 0}), "unknown key of the task of TF_CONFIG"),
            (config(task={**TASK, "index": "0"}), "without quotes"),
            (config(task={**TASK, "index": -1}), "at least 0; received -1"),
            (config(task={**TASK, "index": 2}), "worker:0 to worker:1"),
            (config(task={"type": "evaluator", "index": 1}), "is evaluator:0"),
            (config(cluster=[]), "a cluster gives each job its list of addresses"),
            (config(cluster={"master": ["a:1"]}), "did you mean 'chief'?"),
        ],
    )
    def test_of_the_content(self, text, words):
        assert words in error_of(text)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('{"cluster": 1, "cluster": 2}', "has the key 'cluster' twice: keep one"),
            ('{"task": {"type": 1, "type": 1}}', "has the key 'type' twice"),
            ('{"task": NaN}', "contains NaN, which is not JSON"),
            ('{"task": ' + "9" * 5000 + "}", "cannot be read"),
            ("[" * 100_000, "cannot be read"),
            ('{"task": "' + "x" * 100_000 + '"}', 'has no "cluster"'),
        ],
    )
    def test_of_json_that_python_would_read_or_choke_on(self, text, words):
        message = error_of(text)
        assert words in message
        assert len(message) < 400
        assert message.count("TF_CONFIG") == 1

    def test_points_at_the_place_where_the_json_breaks(self):
        message = error_of('{"cluster":\n\t{"worker": [a:1]}}').splitlines()
        assert "not JSON" in message[0]
        assert "line 2, column 14" in message[0]
        excerpt, caret = message[1:3]
        assert excerpt[caret.index("^")] == "a"
        assert "double quotes" in message[3]

    def test_points_into_a_long_line(self):
        text = '{"cluster": {"worker": [' + '"host:1", ' * 500 + "oops]}}"
        excerpt, caret = error_of(text).splitlines()[1:3]
        assert len(excerpt) < 70
        assert excerpt[caret.index("^") :].startswith("oops")

    @pytest.mark.parametrize(
        "text", ["{", "", "{'a': 1}", '{"a": 1,}', "\ufeff{}", "\n\n"]
    )
    def test_of_text_that_ends_early_or_is_not_json(self, text):
        assert "TF_CONFIG is not JSON" in error_of(text)
