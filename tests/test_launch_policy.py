import pytest

from launch.plan import Program, plan
from launch.policy import Verdict, describe_exit, exit_status, judge, leader, unfinished
from tf_config import Cluster, Task

CHIEF, PS, EVALUATOR = Task("chief", 0), Task("ps", 0), Task("evaluator", 0)
WORKER, OTHER_WORKER = Task("worker", 0), Task("worker", 1)
PS_CLUSTER = Cluster.from_hosts(
    chief="a:1", ps="a:2", worker="a:3,a:4", evaluator="a:5"
)
WORKERS = Cluster.from_hosts(worker="a:1,a:2")


def verdict(cluster, kind, exits):
    return judge(kind, plan(cluster, Program("train.py"), kind), exits)


@pytest.mark.parametrize(
    ("exits", "expected"),
    [
        ({}, None),
        ({CHIEF: 0}, Verdict(0)),
        ({CHIEF: 3}, Verdict(3, "chief exited with status 3")),
        ({CHIEF: -11}, Verdict(139, "chief was killed by SIGSEGV")),
        ({PS: -9}, Verdict(137, "ps:0 was killed by SIGKILL")),
        ({OTHER_WORKER: 4}, Verdict(4, "worker:1 exited with status 4")),
        ({WORKER: 0}, Verdict(1, "worker:0 exited with status 0")),
        ({WORKER: 4, CHIEF: 1}, Verdict(4, "worker:0 exited with status 4")),
        ({CHIEF: 0, WORKER: 4}, Verdict(0)),
        ({EVALUATOR: 0}, None),
        ({EVALUATOR: 2}, Verdict(2, "evaluator exited with status 2")),
    ],
)
def test_coordinator_program_ends_with_its_chief_or_the_first_failure(exits, expected):
    assert verdict(PS_CLUSTER, "coordinator", exits) == expected


@pytest.mark.parametrize(
    ("exits", "expected"),
    [
        ({}, None),
        ({WORKER: 0}, None),
        ({OTHER_WORKER: 0}, None),
        ({OTHER_WORKER: 0, WORKER: 0}, Verdict(0)),
        ({WORKER: 0, OTHER_WORKER: 5}, Verdict(5, "worker:1 exited with status 5")),
    ],
)
def test_every_task_program_ends_with_its_last_worker(exits, expected):
    assert verdict(WORKERS, "every_task", exits) == expected


def test_ps_that_runs_the_script_is_not_waited_for():
    exits = {CHIEF: 0, WORKER: 0, OTHER_WORKER: 0}
    plans = plan(PS_CLUSTER, Program("train.py"), "every_task")
    assert judge("every_task", plans, exits) is None
    assert unfinished(plans, exits) == [EVALUATOR]
    assert judge("every_task", plans, {**exits, EVALUATOR: 0}) == Verdict(0)


def test_leader_is_the_chief_or_else_the_first_worker_that_runs_the_script():
    program = Program("train.py")
    assert leader(plan(PS_CLUSTER, program)) == CHIEF
    assert leader(plan(WORKERS, program)) == WORKER
    servers = [each for each in plan(PS_CLUSTER, program) if each.is_server]
    assert leader(servers) is None
    assert judge("coordinator", servers, {PS: 1}) is None


def test_exit_in_numbers_and_words():
    assert (exit_status(0), exit_status(2), exit_status(-15)) == (0, 2, 143)
    assert describe_exit(-40) == "was killed by signal 40"
