import pytest

from launch.job.gpus import GROWTH, VISIBLE, assign, available
from launch.job.plan import Program, plan
from tf_config import Cluster

PROGRAM = Program("train.py")
PS_CLUSTER = Cluster(chief=("a:1",), ps=("b:1",), worker=("c:1", "d:1"))
WORKERS = Cluster(worker=("c:1", "d:1"))


def visible(plans):
    return {each.name: each.env[VISIBLE] for each in plans}


def test_each_worker_has_gpus_of_its_own_and_a_ps_none():
    plans = assign(plan(PS_CLUSTER, PROGRAM), 2, ["0", "1", "2", "3", "4"])
    assert visible(plans) == {
        "chief": "-1",
        "ps:0": "-1",
        "worker:0": "0,1",
        "worker:1": "2,3",
    }
    assert [GROWTH in each.env for each in plans] == [False, False, True, True]
    assert all("TF_CONFIG" in each.env for each in plans)


def test_a_chief_that_trains_has_gpus_too():
    cluster = Cluster(chief=("a:1",), worker=("b:1",), evaluator=("c:1",))
    plans = assign(plan(cluster, PROGRAM), 1, ["7", "8"])
    assert visible(plans) == {"chief": "7", "worker:0": "8", "evaluator": "-1"}


def test_none_are_shown_if_none_are_asked_for():
    assert set(visible(assign(plan(WORKERS, PROGRAM), 0, ["0"])).values()) == {"-1"}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", ()),
        ("-1", ()),
        ("3,5", ("3", "5")),
        (" 3 , GPU-8a", ("3", "GPU-8a")),
        ("0,-1,2", ("0",)),
    ],
)
def test_what_the_environment_shows(value, names, tmp_path):
    assert available({VISIBLE: value}, tmp_path) == names


def test_what_the_driver_shows(tmp_path):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert available({}, tmp_path) == ("0", "1")
    assert available({}, tmp_path / "none") == ()
