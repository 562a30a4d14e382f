"""Files go to the processes of pytest-xdist whole, also after a process has crashed.

When a process crashes, pytest-xdist 3.8 hands out all files that it ever had, those that are
done among them. Whoever gets such a file has nothing to report, and so is sent nothing
more: all processes wait forever. Here, a file that is done is not handed out again.
"""

import pytest
from xdist.scheduler import LoadFileScheduling


class WholeFiles(LoadFileScheduling):
    """`--dist=loadfile`, of which a crash takes nothing but the test that crashed."""

    def remove_node(self, node):
        files = self.assigned_work[node]
        self.assigned_work[node] = {
            file: tests for file, tests in files.items() if not all(tests.values())
        }
        return super().remove_node(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Schedules `--dist=loadfile`; of other ways, nothing is changed."""
    whole = config.getvalue("dist") == "loadfile"
    return WholeFiles(config, log) if whole else None
