"""What a run of tests says of itself, also when it is cut off.

A line for each failure as it happens; at the end, the tests that were run twice; at SIGTERM,
the tests that were running. `--record=FILE` writes the result as JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

RETRIES = 1
"""How often a test of clusters, and no other, is run again when it fails."""


class Record:
    """Follows a run of tests in the process that reports it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._passed = self._skipped = 0
        self._failed: list[str] = []
        self._retried: list[str] = []
        self._running: dict[str, float] = {}

    def pytest_sessionstart(self) -> None:
        if self._terminal is not None:  # A worker of xdist has none.
            signal.signal(signal.SIGTERM, self._say_what_runs)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":
            self._retried.append(report.nodeid)
        elif report.failed:
            self._failed.append(report.nodeid)
        elif report.when == "call":
            self._passed += report.passed
        self._skipped += report.skipped
        if self._terminal is not None and report.outcome in ("failed", "rerun"):
            self._terminal.ensure_newline()
            self._terminal.write_line(
                f"{report.nodeid} ({report.when}, {report.outcome}): {_why(report)}"
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        path = self._config.getoption("record")
        if path and self._terminal is not None:
            Path(path).write_text(json.dumps(self._result(), indent=2) + "\n")

    def _result(self) -> dict[str, object]:
        return {
            "passed": self._passed,
            "skipped": self._skipped,
            "failed": sorted(set(self._failed)),
            "retried": sorted(set(self._retried)),
            "seconds": round(time.monotonic() - self._began),
            "load": round(os.getloadavg()[1], 1),
        }

    @property
    def _terminal(self):
        return self._config.pluginmanager.get_plugin("terminalreporter")

    def _say_what_runs(self, *_: object) -> None:
        now = time.monotonic()
        for test, since in self._running.items():
            print(f"\nstopped while {test} ran, for {now - since:.0f} s", flush=True)
        sys.stdout.flush()
        os._exit(128 + signal.SIGTERM)


def _why(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return text.strip()[:500]


def add_options(parser: pytest.Parser) -> None:
    """Adds the options of this plugin."""
    parser.addoption("--record", metavar="FILE", help="where the result is written")


def retry_clusters(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has a test of clusters run once more if it fails."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.flaky(reruns=RETRIES))


def register(config: pytest.Config) -> None:
    """Registers the plugin."""
    config.pluginmanager.register(Record(config), "record")
