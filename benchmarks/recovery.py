"""Recovery time of a job, by the role of the killed task.

    python benchmarks/recovery.py --repeats=3

A job of 2 ps and 2 workers trains a small model, with a checkpoint every second. One task
is killed; the launcher reports the time until the server listened again, or until a
program had finished its first step.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROLES = ("worker:1", "ps:1", "chief:0")
TIMEOUT = 300  # seconds

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


def seconds_after(role: str) -> float:
    """Kills one task of a job, and returns the seconds until the job has recovered."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "train.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "launch.local", "--checkpoint_dir=kept"]
        done = subprocess.run(
            [*command, "train.py", role],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    found = re.findall(r"recovered: .* again: ([0-9.]+) s", done.stderr)
    if done.returncode or not found:
        raise RuntimeError(f"the job ended with {done.returncode}:\n{done.stderr}")
    return float(found[-1])


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print("| killed | seconds to recover: median (minimum to maximum) |")
    print("| --- | --- |")
    for role in ROLES:
        taken = sorted(seconds_after(role) for _ in range(repeats))
        print(
            f"| {role.partition(':')[0]} | {statistics.median(taken):.1f} "
            f"({taken[0]:.1f} to {taken[-1]:.1f}) |",
            flush=True,
        )
    print(f"load of the machine: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
