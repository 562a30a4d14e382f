"""The cluster that the tests share, and Python programs beside it.

The process that runs pytest is the chief. A process coordinates one cluster, once,
so every test that needs one uses the same two ps and two workers. With `--strategy`,
tests of features train on two workers and no ps.
"""

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

import launch

from . import parts
from .launch_programs.launcher import Launcher
from .support import own_process, record, scheduling
from .support.deadline import PROGRAM_DEADLINE, STARTUP_DEADLINE
from .support.fresh import fresh_environment, fresh_keras_state, fresh_placement  # noqa: F401
from .support.processes import still_running

# TensorFlow reads it when it is imported. It complains of each remote value that the
# chief still has when the servers end.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# On a busy machine, any example may take longer than Hypothesis's 0.2 s.
settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# The gate draws the same few examples every time; the parts draw more, and others.
settings.register_profile(
    "gate", settings.get_profile("busy"), derandomize=True, max_examples=30
)
settings.load_profile("busy")

PATIENT = {"startup_timeout": STARTUP_DEADLINE}
TESTS = Path(__file__).parent
# Tests import what programs do, as those do.
sys.path.append(str(TESTS / "support"))
PROGRAMS = TESTS / "programs"

PS_STRATEGY = "ParameterServerStrategy"
STRATEGIES = {
    "parameter_server": PS_STRATEGY,
    "bounded": PS_STRATEGY,
    "rounds": PS_STRATEGY,
    "multi_worker": "MultiWorkerMirroredStrategy",
    "ring": "RingStrategy",
}

POLICIES = {
    "bounded": ("BoundedStaleness", {"max_staleness": 2}),
    # Of one batch each, so that there are as many updates as batches.
    "rounds": ("Synchronous", {"replicas_to_aggregate": 1}),
}
"""The policies of consistency under which tests of features train on ps."""

# Tests with one of these fixtures start processes.
MARKED_BY_FIXTURE = {
    "cluster": {"launcher"},
    "slow": {"run_python", "run_program"},
}

MARKERS = (
    *parts.MARKERS,
    "feature(name, works='yes', why='', *, synchronous, multi_worker, ring): a row of "
    "the table of features; see tests/feature_table.py",
    "own_process: the tests of this file run in a second pytest; see own_process.py",
    "parameter_server: a test that means nothing without ps",
    "steps_write: a test of what workers' steps write, which in rounds the updates do",
    "sets_own_value(pattern, why): steps of this test may set variables of such names "
    "to a value computed from their own",
    "sets_new_rows(pattern): steps of this test may set rows, which no other step knows "
    "yet, of variables of such names",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strategy",
        choices=STRATEGIES,
        default="parameter_server",
        help="what the tests of features train under (default: %(default)s)",
    )
    parser.addoption(
        "--all-engines",
        action="store_true",
        help="fail where an engine is not installed, in place of skipping its tests",
    )
    parser.addoption(
        "--gate",
        action="store_true",
        help="run the tests of the gate alone: see tests/parts.py",
    )
    record.add_options(parser)
    parser.addoption(
        own_process.OPTION, type=int, help="used by tests/support/own_process.py"
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    parts.mark_sweeps(items, some=any("::" in each for each in config.args))
    for item in items:
        for marker, fixtures in MARKED_BY_FIXTURE.items():
            if fixtures & set(getattr(item, "fixturenames", ())):
                item.add_marker(marker)
        if item.get_closest_marker(own_process.MARKER):
            item.add_marker("slow")
    left_out = parts.mark_gate(items)
    if config.getoption("gate"):
        items[:] = [item for item in items if item.get_closest_marker(parts.GATE)]
        config.hook.pytest_deselected(items=left_out)
    record.retry_clusters(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if (
        report.skipped
        and item.config.getoption("all_engines")
        and item.get_closest_marker("engine")
    ):
        report.outcome = "failed"
        report.longrepr = f"--all-engines does not skip: {report.longrepr[-1]}"
    return report


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    # Of TensorFlow's own tensors, under NumPy 2.
    config.addinivalue_line("filterwarnings", "ignore:__array__ implementation")
    own_process.register(config)
    record.register(config)
    config.pluginmanager.register(scheduling)
    if config.getoption("gate"):
        settings.load_profile("gate")


@pytest.fixture(scope="session")
def servers(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[launch.Servers]:
    log_dir = str(tmp_path_factory.mktemp("servers"))
    is_on_ps = STRATEGIES[pytestconfig.getoption("strategy")] == PS_STRATEGY
    num_ps = 2 if is_on_ps else 0
    with launch.servers(
        num_ps=num_ps, num_workers=2, log_dir=log_dir, **PATIENT
    ) as servers:
        processes = [psutil.Process(pid) for pid in servers.pids.values()]
        yield servers
        gc.collect()  # While servers answer: afterwards each deletion waits for them.
    assert still_running(processes) == []


@pytest.fixture(scope="session")
def strategy(request: pytest.FixtureRequest):
    import tfdist

    name = request.config.getoption("strategy")
    make = getattr(tfdist, STRATEGIES[name])
    if name == "multi_worker":
        return make()  # This process is a worker: see tests/features/in_step.py.
    servers = request.getfixturevalue("servers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", servers.tf_config.to_json())
        if name not in POLICIES:
            return make()
        policy, arguments = POLICIES[name]
        return make(consistency=getattr(tfdist, policy)(**arguments))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """`launch.local` with stand-ins, which leaves nothing running."""
    with Launcher(tmp_path) as launcher:
        yield launcher


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of `benchmarks/`."""
    monkeypatch.syspath_prepend(str(TESTS.parent / "benchmarks"))
    return importlib.import_module


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a new Python process, whose only cluster is `config`."""

    def run(code: str, *args: str, config: object = None, input: str = ""):
        return _run(["-c", code, *args], config, input)

    return run


@pytest.fixture(scope="session")
def run_program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a file of tests/programs in a new Python process; see `run_python`."""

    def run(name: str, *args: str | Path, config: object = None, input: str = ""):
        return _run([PROGRAMS / name, *args], config, input)

    return run


def _run(
    arguments: Sequence[str | Path], config: Any, input: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    env.pop("TF_CONFIG", None)
    if config is not None:
        env["TF_CONFIG"] = config.to_json()
    return subprocess.run(
        [sys.executable, *arguments],
        env=env,
        input=input,
        text=True,
        capture_output=True,
        timeout=PROGRAM_DEADLINE,
    )
