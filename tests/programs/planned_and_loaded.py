"""Plan a model, built or loaded, and train it loaded: build|load MODEL."""

import json
import sys

import keras
import numpy as np

import tfdist


def build_model(optimizer="adam"):
    ids = keras.Input((3,), dtype="int64")
    tables = [
        tfdist.embedding.Embedding(101, 8, name="dealt", partition_strategy="mod"),
        tfdist.embedding.Embedding(64, 8, name="plain"),
    ]
    flat = [keras.layers.Flatten()(table(ids)) for table in tables]
    bag = tfdist.embedding.EmbeddingBag(3, 300, name="bag")(ids)
    tower = keras.Sequential([keras.Input((48,)), keras.layers.Dense(30)], name="tower")
    hidden = [tower(keras.layers.Concatenate()(flat)), keras.layers.Dense(9)(bag)]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(hidden))
    model = keras.Model(ids, outputs)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def load():
    return keras.models.load_model(path)


planned_from, path = sys.argv[1:]
build_model().save(path)
plan = tfdist.plan(load if planned_from == "load" else build_model, num_ps=2)
strategy = tfdist.ParameterServerStrategy(placement=tfdist.planning.Planned(plan))
x, y = np.arange(24).reshape(8, 3) % 3, np.ones((8, 1))
said = {"planned": plan.imbalance}
said["dealt"] = next(
    v.partition.sizes
    for v in plan.variables
    if v.spec.name.endswith("dealt/embeddings")
)
with strategy.scope():
    model = load()
model.fit(x, y, batch_size=4, verbose=0)
said["receipt"] = str(plan.receipt(strategy.placement_report()))
for make in (build_model, load, build_model):
    with strategy.scope():
        model = make()
        model.fit(x, y, batch_size=4, verbose=0)
        model.save(path)
OTHER_SLOTS = {
    "extra": lambda name: keras.optimizers.Adam(amsgrad=True, name=name),
    "missing": lambda name: keras.optimizers.SGD(name=name),
}
for kind, make in OTHER_SLOTS.items():
    try:
        with strategy.scope():
            model = build_model(make(name="adam"))
        model.fit(x, y, verbose=0)
    except ValueError as error:
        said[kind] = str(error)
print(json.dumps(said))
