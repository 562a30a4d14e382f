"""The chief of a cluster of hosts: says what its link made of a large weight.

It answers each line of its standard input with a line of JSON.
"""

import json
import sys

import keras
import numpy as np

import tfdist
from tfdist.variables.partitioned import PartitionedVariable

strategy = tfdist.ParameterServerStrategy()
print(json.dumps({"ready": 1}), flush=True)
for _ in sys.stdin:
    with strategy.scope():
        model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(256)])
        model.compile("sgd", "mse")
    # Of a step that has to wait for room in flight, the time is known.
    x, y = np.ones((64, 784)), np.ones((64, 256))
    model.fit(x, y, batch_size=1, epochs=2, verbose=0)
    kernel = model.weights[0].value
    split = isinstance(kernel, PartitionedVariable)
    use = strategy.worker_report().link_use
    found = {
        "seconds_per_byte": use.traffic.seconds_per_byte,
        "shards": len(kernel.shards) if split else 1,
        "segments": use.traffic.segments,
        "share": use.weights + use.gradients,
    }
    print(json.dumps(found), flush=True)
