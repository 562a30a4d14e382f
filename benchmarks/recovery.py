"""Recovery time of a job, by the role of the killed task.

    python benchmarks/recovery.py --repeats=5

A job of 2 ps and 2 workers trains a small model, with a checkpoint every second. One task
is killed; the launcher reports the time until the server listened again, or until a
program had finished its first step. Tasks that are forked and tasks that are spawned take
turns.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from turns import Spread

ROOT = Path(__file__).resolve().parent.parent
ROLES = ("worker:1", "ps:1", "chief:0")
TIMEOUT = 300  # seconds
RECOVERED = r"recovered: .*, at work after ([0-9.]+) s"

PROGRAM = """
import json, os, signal, sys, time
import keras, numpy as np, psutil, tfdist

kept = os.path.join(os.environ["TFDIST_CHECKPOINT_DIR"], "fit-000")
job, index = sys.argv[1].split(":")
strategy = tfdist.ParameterServerStrategy(checkpoint_interval=1.0)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")


class KillOnce(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if os.path.exists("killed") or batch % 50:
            return
        if not any(name.startswith("checkpoint") for name in os.listdir(kept)):
            return
        open("killed", "w").close()
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        port = int(cluster[job][int(index)].rpartition(":")[2])
        for each in psutil.net_connections("tcp"):
            if each.status == "LISTEN" and each.laddr.port == port:
                os.kill(each.pid, signal.SIGKILL)
        if job == "worker":
            time.sleep(30)


x = np.random.default_rng(0).normal(size=(8 * 2000, 4)).astype("float32")
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[KillOnce()])
"""


def seconds_after(role: str, fork_server: str) -> float:
    """Kills one task of a job, and returns the seconds until the job has recovered."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "train.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "launch.local", "--checkpoint_dir=kept"]
        command.append(f"--fork_server={fork_server}")
        with running([*command, "train.py", role], directory) as lines:
            for line in lines:
                if found := re.search(RECOVERED, line):
                    return float(found[1])
    raise RuntimeError("the job has ended, and was not seen to recover")


@contextlib.contextmanager
def running(command: Sequence[str], directory: str) -> Iterator[Iterator[str]]:
    """Runs a job of the launcher, yields what it says, and ends it after the block."""
    with subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        assert job.stdout
        try:
            yield iter(job.stdout)
        finally:
            for _ in range(2):  # The second signal ends it without a grace period.
                job.send_signal(signal.SIGTERM)
                time.sleep(0.1)
            job.stdout.read()
            job.wait(TIMEOUT)


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print("| killed | forked, seconds to recover | spawned | ratio of paired repeats |")
    print("| --- | --- | --- | --- |")
    for role in ROLES:
        pairs = [
            (seconds_after(role, "auto"), seconds_after(role, "off"))
            for _ in range(repeats)
        ]
        of_both = list(zip(*pairs, strict=True))
        forked, spawned = (f"{Spread.of(each):.1f}" for each in of_both)
        ratio = Spread.of_ratios(*of_both).median
        name = role.partition(":")[0]
        print(f"| {name} | {forked} | {spawned} | {ratio:.2f} |", flush=True)
    print(f"load of the machine: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
