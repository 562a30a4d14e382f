"""Jobs that lose a host run again elsewhere, within their bounds."""

import signal

import pytest

from launch.engines import here
from launch.engines.here import RunEnd
from launch.engines.record import Record
from launch.job.job import Job


@pytest.fixture(autouse=True)
def own_signals():
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def run(ends, max_restarts=5):
    """Runs a job whose runs end so; returns its status, its log directories, and words."""
    rest, log_dirs, words = iter(ends), [], []

    def once(log_dir):
        log_dirs.append(log_dir)
        return RunEnd(*next(rest))

    job = Job("coordinator", (), "logs", max_restarts=max_restarts)
    record = Record("mine", "ssh", "logs", "", {}, 1.0)
    with record.held():
        status = here.run_and_move(job, record, once, words.append)
    assert record.end == {"code": status}
    return status, log_dirs, words


@pytest.mark.parametrize(
    ("ends", "status", "log_dirs"),
    [
        ([(0, False)], 0, ["logs"]),
        ([(3, False)], 3, ["logs"]),
        ([(255, True), (0, False)], 0, ["logs", "logs/move-1"]),
        # It succeeded before it could move.
        ([(0, True)], 0, ["logs"]),
    ],
)
def test_a_job_moves_as_long_as_it_has_to(ends, status, log_dirs):
    assert run(ends) == (status, log_dirs, [])


@pytest.mark.parametrize("most", [0, 1])
def test_moves_are_bounded(most):
    status, log_dirs, (words,) = run([(255, True)] * 3, most)
    assert status == 255
    assert len(log_dirs) == 1 + most
    assert "too many moves (--max_restarts)" in words


def test_a_signal_between_two_runs_ends_the_job(capsys):
    def once(log_dir):
        signal.raise_signal(signal.SIGTERM)

    job = Job("coordinator", (), "logs", max_restarts=5)
    record = Record("mine", "ssh", "logs", "", {}, 1.0)
    with record.held(), pytest.raises(SystemExit) as end:
        here.run_and_move(job, record, once, print)
    assert record.end == {"code": end.value.code}
    assert end.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().out == "SIGTERM: ending the job; no task of it runs\n"
