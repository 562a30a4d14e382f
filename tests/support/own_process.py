"""Run the tests of a file in a second pytest process, and report each one here.

TensorFlow can be configured once per process, before its first use: how many logical
devices it has, and whether it is the chief of a cluster. A file of tests that needs
another configuration than the process of pytest says

    pytestmark = pytest.mark.own_process

and its tests then run in a second pytest, which this plugin starts once per file with the
tests that were selected. Each is reported here as it ends: `-k`, `-x` and `--durations`
work as usual. TensorFlow must not be configured when the file is imported, but in a
fixture: the first pytest imports it too.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MARKER = "own_process"
OPTION = "--report-to-fd"
EXIT_TIMEOUT = 60.0  # seconds


class Reporter:
    """In the second process: writes each report as a line of JSON."""

    def __init__(self, config: pytest.Config, descriptor: int) -> None:
        self._config = config
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data) + "\n")


class OwnProcesses:
    """In the first process: starts one process per marked file, and relays its reports."""

    def __init__(self) -> None:
        self._child: Child | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if item.get_closest_marker(MARKER) is None:
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        # The test before left standing what it shares with this one, as its folder, and the
        # next one may be elsewhere.
        item.session._setupstate.teardown_exact(nextitem)
        if self._child and (nextitem is None or nextitem.path != item.path):
            self._child.close()
            self._child = None
        return True

    def _reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        found: list[pytest.TestReport] = []

        def read() -> None:
            if self._child is None:
                tests = [i for i in item.session.items if i.path == item.path]
                self._child = Child(item.config, tests)
            found.extend(self._child.reports_of(item))

        # That the process has ended fails the test, and must not end the session.
        call = pytest.CallInfo.from_call(
            read, "call", reraise=(pytest.exit.Exception, KeyboardInterrupt)
        )
        if call.excinfo is not None:
            found.append(pytest.TestReport.from_item_and_call(item, call))
        return found

    def pytest_sessionfinish(self) -> None:
        if self._child:  # The session ends early, as by `-x`.
            self._child.interrupt()
            self._child.close()


class Child:
    """A second pytest, which runs some tests of one file.

    Args:
        config: That of this process.
        tests: The tests to run, all of the same file.
    """

    def __init__(self, config: pytest.Config, tests: list[pytest.Item]) -> None:
        self._config = config
        self._output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        # It runs these tests as they are listed, each once.
        command += [f"-pno:{each}" for each in ("xdist", "randomly", "rerunfailures")]
        command.append(f"--rootdir={config.rootpath}")
        # What a process that dies has written is in the output, not with pytest.
        command += ["--capture=tee-sys", "-c", str(config.inipath)]
        command.append(f"{OPTION}={writer}")
        if config.getoption("gate"):
            command.append("--gate")
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        env.pop("TF_CONFIG", None)
        self._process = subprocess.Popen(
            [*command, *(f"{test.path}::{_name(test)}" for test in tests)],
            cwd=config.invocation_params.dir,
            env=env,
            pass_fds=[writer],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        os.close(writer)
        self._file = os.fdopen(reader)

    def reports_of(self, item: pytest.Item) -> Iterator[pytest.TestReport]:
        """Yields the reports of a test; each test has one of its teardown, which is last.

        Raises:
            RuntimeError: The process ended before it had run the test.
        """
        for line in self._file:
            report = self._config.hook.pytest_report_from_serializable(
                config=self._config, data=json.loads(line)
            )
            if report.nodeid != item.nodeid:
                continue  # Of a test that ran into its deadline here.
            # Of a skip: JSON has no tuple.
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(report.longrepr)
            yield report
            if report.when == "teardown":
                return
        raise RuntimeError(self._ended(item))

    def _ended(self, item: pytest.Item) -> str:
        code = self._process.wait(EXIT_TIMEOUT)
        self._output.seek(0)
        return (
            f"the process of {Path(item.path).name} exited with status {code} before it "
            f"had run {item.name}; its output ends with:\n{self._output.read()[-4000:]}"
        )

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Ends the process, which has no more tests to run."""
        self._file.close()
        try:
            self._process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


def _name(test: pytest.Item) -> str:
    return test.nodeid.partition("::")[2]


def register(config: pytest.Config) -> None:
    """Registers the half of the plugin that this process needs."""
    descriptor = config.getoption(OPTION.strip("-").replace("-", "_"))
    plugin = OwnProcesses() if descriptor is None else Reporter(config, descriptor)
    config.pluginmanager.register(plugin, "own-process")
