import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.job.plan import Program, plan
from launch.supervise.policy import (
    LOST,
    Verdict,
    can_spare,
    closing,
    describe_exit,
    exit_status,
    judge,
    leader,
    may_come_back,
    restart_delay,
    to_restart,
    unfinished,
)
from tf_config import Cluster, Task
from tf_config.contract import EXIT_RESTART

OTHER_PS = Task("ps", 1)
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
        ({CHIEF: 0}, None),
        ({CHIEF: 0, EVALUATOR: 0}, Verdict(0)),
        ({CHIEF: 0, EVALUATOR: 2}, Verdict(2, "evaluator exited with status 2")),
        ({CHIEF: 3}, Verdict(3, "chief exited with status 3")),
        ({CHIEF: -11}, Verdict(139, "chief was killed by SIGSEGV")),
        ({PS: -9}, Verdict(137, "ps:0 was killed by SIGKILL")),
        ({OTHER_WORKER: 4}, Verdict(4, "worker:1 exited with status 4")),
        ({WORKER: 0}, Verdict(1, "worker:0 exited with status 0")),
        ({WORKER: 4, CHIEF: 1}, Verdict(4, "worker:0 exited with status 4")),
        ({CHIEF: 0, WORKER: 4}, None),
        ({CHIEF: 0, WORKER: 4, EVALUATOR: 0}, Verdict(0)),
        ({EVALUATOR: 0}, None),
        ({EVALUATOR: 2}, Verdict(2, "evaluator exited with status 2")),
    ],
)
def test_coordinator_program_ends_with_its_chief_and_evaluator_or_a_failure(
    exits, expected
):
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
    assert closing(plans, exits) == [PS]
    assert closing(plans, {**exits, PS: 0}) == []
    servers = plan(PS_CLUSTER, Program("train.py"), "coordinator")
    assert closing(servers, exits) == []


@pytest.mark.parametrize(
    ("lost", "given_up", "needed", "expected"),
    [
        ([WORKER], [], 1, True),
        ([WORKER], [], 2, False),
        ([WORKER], [OTHER_WORKER], 1, False),
        ([WORKER, OTHER_WORKER], [], 1, False),
        ([PS], [], 1, False),
        ([WORKER, PS], [], 1, False),
        ([CHIEF], [], 1, False),
    ],
)
def test_only_workers_that_are_not_needed_are_given_up(
    lost, given_up, needed, expected
):
    plans = plan(PS_CLUSTER, Program("train.py"), "coordinator")
    assert can_spare(plans, lost, given_up, needed) is expected


def test_leader_is_the_chief_or_else_the_first_worker_that_runs_the_script():
    program = Program("train.py")
    assert leader(plan(PS_CLUSTER, program)) == CHIEF
    assert leader(plan(WORKERS, program)) == WORKER
    servers = [each for each in plan(PS_CLUSTER, program) if each.is_server]
    assert leader(servers) is None
    assert judge("coordinator", servers, {PS: 1}) is None


TWO_PS = Cluster.from_hosts(
    chief="a:1", ps="a:2,a:6", worker="a:3,a:4", evaluator="a:5"
)
PROGRAM = (CHIEF, PS, OTHER_PS)


def again(cluster, kind, exits):
    return set(to_restart(kind, plan(cluster, Program("train.py"), kind), exits))


@pytest.mark.parametrize(
    ("exits", "expected"),
    [
        ({}, ()),
        ({WORKER: -9}, (WORKER,)),
        ({WORKER: 0, OTHER_WORKER: 3}, (WORKER, OTHER_WORKER)),
        ({PS: -9}, PROGRAM),
        ({PS: -9, CHIEF: 1}, PROGRAM),
        ({CHIEF: 1, PS: -9}, PROGRAM),
        ({CHIEF: -9}, PROGRAM),
        ({CHIEF: EXIT_RESTART}, PROGRAM),
        ({CHIEF: -11, WORKER: -9}, (*PROGRAM, WORKER)),
        ({CHIEF: 0}, ()),
        ({CHIEF: 0, PS: -9}, ()),
        ({CHIEF: 1}, ()),
        ({CHIEF: 1, WORKER: -9}, ()),
        ({EVALUATOR: -9}, (EVALUATOR,)),
        ({EVALUATOR: 0}, ()),
        ({EVALUATOR: 2}, ()),
    ],
)
def test_who_is_started_again(exits, expected):
    assert again(TWO_PS, "coordinator", exits) == set(expected)


def test_programs_that_cannot_lose_a_task_are_not_started_again():
    assert again(WORKERS, "every_task", {WORKER: -9}) == set()
    assert again(TWO_PS, "every_task", {PS: -9}) == set()


@pytest.mark.parametrize(
    ("exits", "is_lost"),
    [
        ({WORKER: -9}, True),
        ({OTHER_WORKER: -9, WORKER: 1}, True),  # The second fails without the first.
        ({OTHER_WORKER: EXIT_RESTART}, True),
        ({WORKER: 1, OTHER_WORKER: -9}, False),
        ({WORKER: 1}, False),
        ({OTHER_WORKER: 0, WORKER: -9}, False),  # The training is over.
        ({}, False),
    ],
)
def test_all_start_again_where_each_needs_all_and_can_resume(exits, is_lost):
    plans = plan(WORKERS, Program("train.py"))
    expected = tuple(each.task for each in plans) if is_lost else ()
    assert to_restart("every_task", plans, exits, resumes=True) == expected
    assert to_restart("every_task", plans, exits) == ()


@pytest.mark.parametrize("exits", [{WORKER: -9}, {CHIEF: 1, WORKER: -9}, {CHIEF: -9}])
def test_without_ps_the_workers_have_the_variables(exits):
    no_ps = Cluster.from_hosts(chief="a:1", worker="a:2,a:3")
    everybody = {CHIEF, Task("worker", 0), Task("worker", 1)}
    assert again(no_ps, "coordinator", exits) == everybody
    assert again(no_ps, "coordinator", {CHIEF: 1}) == set()


@pytest.mark.parametrize(
    ("code", "exits", "expected"),
    [
        (-9, {WORKER: -9}, True),
        (EXIT_RESTART, {WORKER: EXIT_RESTART}, True),
        (-9, {WORKER: -9, OTHER_WORKER: 3}, True),
        (3, {WORKER: 3}, False),
        (LOST, {WORKER: LOST}, False),
        (-9, {WORKER: -9, OTHER_WORKER: 0}, False),
    ],
)
def test_a_worker_that_was_killed_is_started_again_while_others_train(
    code, exits, expected
):
    assert may_come_back(code, exits) is expected


CODES = st.dictionaries(
    st.sampled_from([CHIEF, PS, OTHER_PS, WORKER, OTHER_WORKER, EVALUATOR]),
    st.sampled_from([-9, 0, 1, EXIT_RESTART]),
)


@given(CODES)
def test_a_lost_task_is_started_again_or_ends_the_job(exits):
    tasks = again(TWO_PS, "coordinator", exits)
    ended = verdict(TWO_PS, "coordinator", exits)
    order = list(exits)
    # Servers and workers may be lost after the chief has ended well.
    over = order.index(CHIEF) if exits.get(CHIEF) == 0 else len(order)
    matter = {t for i, t in enumerate(order) if i < over or t == EVALUATOR}
    assert tasks or ended or all(exits[t] == 0 for t in matter)
    if tasks:
        lost = {t for t, code in exits.items() if code or t != EVALUATOR}
        assert lost <= tasks
        # The chief and its variables go together.
        assert len(tasks & set(PROGRAM)) in (0, 3)


@given(
    st.lists(st.floats(0, 1e4), max_size=20).map(sorted),
    st.integers(1, 10),
    st.floats(1, 1e4),
)
def test_restarts_are_bounded_and_back_off(times, most, window):
    allowed = []
    for now in times:
        delay = restart_delay(allowed, now, most, window)
        if delay is not None:
            assert 0 <= delay <= 30
            allowed.append(now)
    for start in allowed:
        assert sum(start <= time < start + window for time in allowed) <= most


def test_the_first_restart_is_at_once_and_each_next_waits_twice_as_long():
    delays = [restart_delay([0.0] * n, 1.0, 9, 60.0) for n in range(8)]
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30]


def test_exit_in_numbers_and_words():
    assert (exit_status(0), exit_status(2), exit_status(-15)) == (0, 2, 143)
    assert describe_exit(-40) == "was killed by signal 40"
    assert (exit_status(LOST), describe_exit(LOST)[:8]) == (255, "was lost")
