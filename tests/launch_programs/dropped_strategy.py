"""Says of a strategy what its copies and its devices are, drops it, and counts threads.

    python -m launch.local ... dropped_strategy.py NAME DIRECTORY

Writes DIRECTORY/JOB-INDEX.json.
"""

import copy
import gc
import json
import sys
import threading
import time
import weakref
from pathlib import Path

import tfdist

DEADLINE = 120.0  # seconds


def describe(name):
    strategy = getattr(tfdist, name)(startup_timeout=200)
    resolver = strategy.cluster_resolver
    found = {
        "copy": copy.copy(strategy) is strategy,
        "deepcopy": copy.deepcopy({"train_distribute": strategy})["train_distribute"]
        is strategy,
        "task": f"{resolver.task_type}-{resolver.task_id}",
        "accelerators": resolver.num_accelerators(),
        "threads": own_threads(),
    }
    return found, weakref.ref(strategy)


def own_threads():
    return [each.name for each in threading.enumerate() if each.name != "MainThread"]


def main(name, directory):
    found, strategy = describe(name)
    gc.collect()
    found["is_garbage"] = strategy() is None
    ends = time.monotonic() + DEADLINE
    while own_threads() and time.monotonic() < ends:
        time.sleep(0.1)
    found["threads_after"] = own_threads()
    Path(directory, f"{found['task']}.json").write_text(json.dumps(found))
    if name == "MultiWorkerMirroredStrategy":
        # The other one must not lose its peer before it has said as much.
        while len(list(Path(directory).glob("*.json"))) < 2 and time.monotonic() < ends:
            time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
