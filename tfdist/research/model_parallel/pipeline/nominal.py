"""Assumed costs of layers, devices and links, for use where nothing is measured.

Only the ratios of these numbers matter for where a model is cut: all times of a step grow
with the rows of a batch, except for the latency of a link.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras

from tfdist import _tf
from tfdist.research.model_parallel.devices import Link, Links
from tfdist.research.model_parallel.estimated import BACKWARD, seconds_of_call
from tfdist.research.model_parallel.graph import LayerGraph
from tfdist.research.model_parallel.keras_graph import CallGraph, LayerCall
from tfdist.research.model_parallel.pipeline.chain import OUTPUTS
from tfdist.research.model_parallel.splitting.nodes import CallNode

ROWS = 32
"""Rows of a microbatch."""

NETWORK = Link(1.25e9, 50e-6)
"""Between processes: 10 Gbit/s."""


class Speed(NamedTuple):
    """A device's computations per second, and the bytes that it reaches in memory."""

    flops: float
    bandwidth: float


CPU, GPU = Speed(1e11, 1e10), Speed(1e13, 1e12)
WITHIN_CPU, WITHIN_GPUS = Link(CPU.bandwidth), Link(1e10, 10e-6)
"""Between the devices of one process: in memory, or by PCIe."""


def speed_of(devices: Sequence[str]) -> Speed:
    """Returns the assumed speed of each of the devices: a GPU's if one is a GPU.

    >>> speed_of(["/job:worker/task:0/device:CPU:0"]) == CPU
    True
    """
    return GPU if any("GPU" in each for each in devices) else CPU


def links_of(devices: Sequence[str]) -> Links:
    """Returns the links between devices, given by their full names.

    >>> a, b, c = [f"/task:{i}/device:CPU:{j}" for i, j in ((0, 0), (0, 1), (1, 0))]
    >>> links = links_of([a, b, c])
    >>> links.of(a, b) == WITHIN_CPU, links.of(b, c) == NETWORK
    (True, True)
    """
    within = WITHIN_GPUS if speed_of(devices) == GPU else WITHIN_CPU
    between = {
        (a, b): within
        for a in devices
        for b in devices
        if a.partition("/device:")[0] == b.partition("/device:")[0]
    }
    return Links(*NETWORK, between=between)


def graph_of_calls(
    functional: keras.Model, nodes: Sequence[CallNode], speed: Speed
) -> LayerGraph:
    """Returns the calls of layers as a graph, and after them one that takes the outputs.

    Costs follow from shapes, for microbatches of 32 rows. A model within the model counts
    as one; a length that is not known, as 1.
    """
    calls = CallGraph(rows=ROWS)
    for at, node in enumerate(nodes):
        seconds = ROWS * _seconds(node, speed)
        called = LayerCall(node.outputs, seconds, BACKWARD * seconds)
        name = f"{at} {node.operation.name}"
        calls.add(node.operation, name, node.input_tensors, called)
    calls.add(None, OUTPUTS, functional.outputs, LayerCall((), 0.0, 0.0))
    return calls.graph()


def _seconds(node: CallNode, speed: Speed) -> float:
    layer = node.operation
    if isinstance(layer, keras.Model) and (inner := _tf.functional_of(layer)):
        return sum(_seconds(each, speed) for each in _tf.nodes_of(inner))
    return seconds_of_call(layer, node.input_tensors, node.outputs, *speed)
