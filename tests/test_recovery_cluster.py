"""A real training whose tasks are killed and stopped, one after the other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 240.0  # seconds
EPOCHS, STEPS = 3, 400

PROGRAM = """
import json, os, signal, sys, time
import keras, numpy as np, psutil, tensorflow as tf, tfdist

epochs, steps = map(int, sys.argv[1:])
kept = os.path.join(os.environ["TFDIST_CHECKPOINT_DIR"], "fit-000")
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
with open("victims") as file:
    victims = file.read().split()
strategy = tfdist.ParameterServerStrategy(checkpoint_interval=0.2)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")


def send(signal, job, index):
    port = int(cluster[job][int(index)].rpartition(":")[2])
    for each in psutil.net_connections("tcp"):
        if each.status == "LISTEN" and each.laddr.port == port:
            os.kill(each.pid, signal)


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        has_checkpoint = any(name.startswith("checkpoint") for name in os.listdir(kept))
        if batch % 50 or not (victims and has_checkpoint):
            return
        victim = victims.pop(0)
        with open("victims", "w") as file:
            file.write(" ".join(victims))
        name, job, index = victim.split(":")
        print(name, job, index, flush=True)
        send(getattr(signal, name), job, index)
        if victim == "SIGKILL:worker:0":
            train_until_it_is_back()


def train_until_it_is_back():
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        model.train_on_batch(x[:8], y[:8])
        try:
            counted = strategy.worker_report().steps[0]
        except (tf.errors.CancelledError, tf.errors.UnavailableError):
            time.sleep(0.1)  # It cannot answer yet.
            continue
        # It counts in a variable of its own, which began again with it.
        if 0 < counted < 10:
            print("the new worker:0 has run a step", flush=True)
            return


x = np.random.default_rng(0).normal(size=(8 * steps, 4)).astype("float32")
y = x @ np.float32([[1.0], [-2.0], [3.0], [0.5]])
history = model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[Kill()])
print("epochs", history.epoch, flush=True)
print("iterations", int(model.optimizer.iterations), flush=True)
print("workers", all(strategy.worker_report().steps), flush=True)
"""


@pytest.mark.cluster
@pytest.mark.timeout(TIMEOUT)
def test_tasks_are_killed_and_stopped_and_training_ends_as_planned(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "victims").write_text("SIGKILL:worker:0 SIGSTOP:worker:1 SIGKILL:ps:1")
    command = [sys.executable, "-m", "launch.local", "--checkpoint_dir=checkpoints"]
    command.append("--stall_timeout=8")
    done = subprocess.run(
        [*command, "train.py", str(EPOCHS), str(STEPS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    said = [line.partition("] ")[2].strip() for line in done.stdout.splitlines()]
    assert "the new worker:0 has run a step" in said
    assert any(line.startswith("WARNING:tfdist:fit goes on from") for line in said)
    assert f"epochs {list(range(EPOCHS))}" in said
    assert "workers True" in said
    [iterations] = [int(w.split()[1]) for w in said if w.startswith("iterations")]
    assert iterations >= EPOCHS * STEPS
    assert "worker:0 was killed by SIGKILL: restarting worker:0" in done.stderr
    # The launcher sees that it is stopped, and the chief that it does not answer.
    seen_by = ("worker:1 has been stopped", "chief waits for worker:1: killing it")
    assert any(words in done.stderr for words in seen_by)
    assert "worker:1 was killed by SIGKILL: restarting worker:1" in done.stderr
    assert "recovered: ps:1 was killed by SIGKILL; chief, ps:0, ps:1" in done.stderr
