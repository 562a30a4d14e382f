"""Plan a model, train it as planned, and compare: PLAN."""

import json
import sys

import keras
import numpy as np

import tfdist


def build_model(units=40):
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int64"),
            keras.layers.Embedding(50, 8, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(units, activation="relu", name="large"),
            keras.layers.Dense(1, name="last"),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


plan = tfdist.plan(build_model, num_ps=2)
plan.save(sys.argv[1])
plan = tfdist.planning.Plan.load(sys.argv[1])
strategy = tfdist.ParameterServerStrategy(placement=tfdist.planning.Planned(plan))
said = {"planned": plan.imbalance}
with strategy.scope():
    model = build_model()
x = np.arange(64 * 6).reshape(64, 6) % 50
said["loss"] = model.fit(x, np.ones(64), batch_size=8, epochs=3, verbose=0).history[
    "loss"
]
report = strategy.placement_report()
receipt = plan.receipt(report)
said["receipt"] = str(receipt)
said["matches"] = receipt.matches
said["actual"] = report.imbalance
said["shards"] = [
    len(w.value.shards) for w in model.weights if hasattr(w.value, "shards")
]
said["steps"] = strategy.worker_report().steps
with strategy.scope():
    try:
        build_model(units=30)
    except ValueError as error:
        said["other"] = str(error)
print(json.dumps(said))
