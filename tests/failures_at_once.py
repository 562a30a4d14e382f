"""Say why a test failed when it fails: a run that is cut off prints no summary."""

import pytest


class FailuresAtOnce:
    """Writes a line for each failure, below the progress of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:  # A worker of xdist has none.
            terminal.ensure_newline()
            terminal.write_line(f"{report.nodeid} ({report.when}): {_why(report)}")


def _why(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return text.strip()[:500]


def register(config: pytest.Config) -> None:
    """Registers the plugin."""
    config.pluginmanager.register(FailuresAtOnce(config), "failures-at-once")
