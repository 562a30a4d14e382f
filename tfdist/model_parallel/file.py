"""Writes and reads plans of layers as JSON. Imports no TensorFlow."""

import dataclasses
import json
import math
import os
from typing import Any

from tfdist.model_parallel.devices import Device, Links
from tfdist.model_parallel.graph import LayerEdge, LayerGraph, LayerNode
from tfdist.model_parallel.plan import LayerPlan
from tfdist.planning import fields
from tfdist.planning.file import PlanFileError, read
from tfdist.splitting.split import COLUMNS, ROWS, LayerMatrix, Split

VERSION = 1
KIND = "layers"


def to_json(plan: LayerPlan) -> str:
    """Returns the plan as JSON, one layer per line."""
    head = {
        "version": VERSION,
        "kind": KIND,
        "microbatches": plan.microbatches,
        "devices": [dataclasses.asdict(device) for device in plan.devices],
        "links": _of_links(plan.links),
        "compared": dict(plan.compared),
        "split": {name: dataclasses.asdict(each) for name, each in plan.split.items()},
    }
    rows = {
        "nodes": [
            {**_row(node), "device": plan.placed[node.unit]}
            for node in plan.graph.nodes
        ],
        "edges": [_row(edge) for edge in plan.graph.edges],
    }
    parts = [json.dumps(head)[1:-1]] + [
        f'"{name}": [\n  {_lines(each)}\n]' for name, each in rows.items()
    ]
    return f"{{{', '.join(parts)}}}\n"


def from_json(text: str) -> LayerPlan:
    """Returns the plan that `to_json` wrote.

    Raises:
        PlanFileError: If the text is no such plan.
    """
    try:
        return _from_data(fields.an_object("plan", json.loads(text)))
    except (ValueError, RecursionError) as error:
        raise PlanFileError(
            f"this is not a plan that tfdist.LayerPlan.save has written: {error}"
        ) from error


def load(path: str | os.PathLike[str]) -> LayerPlan:
    """Reads a plan from a file.

    Raises:
        PlanFileError: If the file is no such plan. The error names the file.
        OSError: If the file cannot be read.
    """
    return read(path, from_json)


def _row(thing: LayerNode | LayerEdge) -> dict[str, Any]:
    """Returns what is not as by default, which is little of most."""
    defaults = {each.name: each.default for each in dataclasses.fields(thing)}
    row = dataclasses.asdict(thing)
    return {name: value for name, value in row.items() if value != defaults[name]}


def _lines(rows: list[dict[str, Any]]) -> str:
    return ",\n  ".join(map(json.dumps, rows))


def _of_links(links: Links) -> dict[str, Any]:
    def number(bandwidth: float) -> float | None:
        return bandwidth if math.isfinite(bandwidth) else None

    return {
        "bandwidth": number(links.bandwidth),
        "latency": links.latency,
        "between": [
            [source, target, number(bandwidth), latency]
            for (source, target), (bandwidth, latency) in links.between.items()
        ],
    }


def _from_data(data: dict[str, Any]) -> LayerPlan:
    version = fields.get(data, "version", fields.whole(0))
    if version != VERSION:
        raise ValueError(
            f"the plan has version {version}, and this tfdist reads version {VERSION}: "
            "plan again"
        )
    fields.get(data, "kind", fields.one_of((KIND,)))
    devices = tuple(fields.get(data, "devices", fields.list_of(_device)))
    rows = fields.get(data, "nodes", fields.list_of(fields.an_object))
    nodes = tuple(_node(row) for row in rows)
    graph = LayerGraph(nodes, tuple(fields.get(data, "edges", fields.list_of(_edge))))
    placed: dict[str, str] = {}
    names = tuple(device.name for device in devices)
    for node, row in zip(nodes, rows, strict=True):
        device = fields.get(row, "device", fields.one_of(names))
        if placed.setdefault(node.unit, device) != device:
            raise ValueError(
                f"the calls of layer {node.unit!r} are on {placed[node.unit]!r} and on "
                f"{device!r}: a layer has one device"
            )
    compared = fields.get(data, "compared", fields.an_object)
    # Plans of older versions have none.
    split = fields.get(data, "split", fields.an_object, {})
    return LayerPlan(
        graph,
        devices,
        _links(fields.get(data, "links", fields.an_object)),
        placed,
        fields.get(data, "microbatches", fields.whole(1)),
        {name: _number_or_none(name, each) for name, each in compared.items()},
        {name: _split(name, each) for name, each in split.items()},
    )


def _number(key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise fields.RefusedError(key, "a number", value)
    return float(value)


def _number_or_none(key: str, value: Any) -> float | None:
    return None if value is None else _number(key, value)


def _bandwidth(key: str, value: Any) -> float:
    return math.inf if value is None else _number(key, value)


def _device(key: str, value: Any) -> Device:
    row = fields.an_object(key, value)
    memory = row.get("memory")
    return Device(
        fields.get(row, "name", fields.text),
        fields.get(row, "speed", _number),
        None if memory is None else fields.whole(0)("memory", memory),
    )


def _links(row: dict[str, Any]) -> Links:
    between = {}
    for each in fields.get(row, "between", fields.list_of(fields.a_list)):
        if len(each) != 4:
            raise fields.RefusedError(
                "between", "a list of source, target, bandwidth and latency", each
            )
        source, target, bandwidth, latency = each
        pair = (fields.text("between", source), fields.text("between", target))
        between[pair] = (_bandwidth("between", bandwidth), _number("between", latency))
    return Links(
        fields.get(row, "bandwidth", _bandwidth),
        fields.get(row, "latency", _number),
        between,
    )


def _node(row: dict[str, Any]) -> LayerNode:
    return LayerNode(
        fields.get(row, "name", fields.text),
        fields.get(row, "forward", _number, 0.0),
        fields.get(row, "backward", _number, 0.0),
        fields.get(row, "weights", fields.whole(0), 0),
        fields.get(row, "activations", fields.whole(0), 0),
        fields.get(row, "layer", fields.text, ""),
        _matrix(row["matrix"]) if "matrix" in row else None,
    )


def _matrix(value: Any) -> LayerMatrix:
    row = fields.an_object("matrix", value)
    return LayerMatrix(
        fields.get(row, "rows", fields.whole(1)),
        fields.get(row, "columns", fields.whole(1)),
        fields.get(row, "is_lookup", fields.flag, False),
        fields.get(row, "is_whole", fields.flag, False),
    )


def _split(key: str, value: Any) -> Split:
    row = fields.an_object(key, value)
    return Split(
        fields.get(row, "parts", fields.whole(2)),
        fields.get(row, "by", fields.one_of((COLUMNS, ROWS))),
    )


def _edge(key: str, value: Any) -> LayerEdge:
    row = fields.an_object(key, value)
    return LayerEdge(
        fields.get(row, "source", fields.text),
        fields.get(row, "target", fields.text),
        fields.get(row, "size", fields.whole(0), 0),
        fields.get(row, "has_gradient", fields.flag, True),
        fields.get(row, "output", fields.whole(0), 0),
    )
