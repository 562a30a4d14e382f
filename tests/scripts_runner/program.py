"""Runs scripts under a strategy, one after the other; a job's tasks run this.

    python tests/scripts_runner/program.py STRATEGY OPTIONS DIRECTORY FOLDER SCRIPT...

What each of them returns goes to DIRECTORY/SCRIPT-TASK.json, and the weights of its
models beside it. The program ends with status 1 after a script that failed: its
collectives, or its steps under way, may keep the next one from running.
"""

import importlib.util
import json
import linecache
import os
import re
import sys
import time
import traceback
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

STRATEGIES = {
    "plain": tf.distribute.get_strategy,
    "parameter_server": tfdist.ParameterServerStrategy,
    "multi_worker": tfdist.MultiWorkerMirroredStrategy,
    "ring": tfdist.RingStrategy,
}
# What a program says of a wrong use; an OpError is a RuntimeError nowhere.
SAID = (ValueError, TypeError, RuntimeError, NotImplementedError)
STARTED = "started"  # a file: the cluster stands, and the first script begins
FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')


def load(path):
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Keras finds a model's class by its module.
    spec.loader.exec_module(module)
    return module


def run(path, strategy, directory):
    """Runs one script; returns what to write of it, and its weights."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    try:
        metrics, *models = load(path).main(strategy, str(directory))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        print(f"{path.stem}: {text}", flush=True)
        return {
            "error": f"{type(error).__name__}: {error}",
            "traceback": text,
            "refused": is_refusal(error),
            "when": time.time(),
        }, []
    weights = [np.asarray(each) for model in models for each in model.get_weights()]
    metrics = {key: float(value) for key, value in metrics.items()}
    return {"metrics": metrics}, weights


def is_refusal(error):
    """Whether tfdist itself raised it, in so many words."""
    if type(error).__module__.startswith("tfdist."):
        return True
    if not isinstance(error, SAID) or isinstance(error, tf.errors.OpError):
        return False
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    # AutoGraph raises it anew, with the frames in the message.
    frames += [(path, int(line)) for path, line in FRAME.findall(str(error))]
    path, line = frames[-1]
    of_tfdist = Path(path).is_relative_to(Path(tfdist.__file__).parent)
    return of_tfdist and linecache.getline(path, line).strip().startswith("raise ")


def write(found, weights, directory, name, task):
    np.savez(directory / f"{name}-{task}.npz", *weights)
    partial = directory / f"{name}-{task}.partial"
    partial.write_text(json.dumps(found))
    partial.rename(directory / f"{name}-{task}.json")


def main(strategy_name, options, directory, folder, *names):
    directory = Path(directory)
    patient = {"startup_timeout": 200, **json.loads(options)}
    strategy = STRATEGIES[strategy_name](**{} if strategy_name == "plain" else patient)
    task = getattr(strategy.extended, "worker_index", 0)
    (directory / STARTED).touch()
    for name in names:
        own = directory / name
        own.mkdir(exist_ok=True)
        found, weights = run(Path(folder, f"{name}.py"), strategy, own)
        write(found, weights, directory, name, task)
        if "error" in found and not found["refused"]:
            sys.stdout.flush()
            os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
