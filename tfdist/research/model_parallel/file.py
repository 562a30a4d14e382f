"""The JSON of a plan of layers."""

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from tfdist.planning import fields
from tfdist.planning.file import PlanFileError
from tfdist.research.model_parallel.devices import Device, Links
from tfdist.research.model_parallel.graph import LayerEdge, LayerGraph, LayerNode
from tfdist.research.model_parallel.splitting.split import LayerMatrix, Split
from tfdist.research.model_parallel.work import Work

VERSION = 1
KIND = "layers"


def to_json(
    work: Work,
    placed: Mapping[str, str],
    compared: Mapping[str, float | None],
    split: Mapping[str, Split],
) -> str:
    """Returns the fields of a plan as JSON, one layer per line."""
    head = {
        "version": VERSION,
        "kind": KIND,
        "microbatches": work.microbatches,
        "devices": [dataclasses.asdict(device) for device in work.devices],
        "links": _of_links(work.links),
        "compared": dict(compared),
        "split": {name: dataclasses.asdict(each) for name, each in split.items()},
    }
    rows = {
        "nodes": [
            {**_row(node), "device": placed[node.unit]} for node in work.graph.nodes
        ],
        "edges": [_row(edge) for edge in work.graph.edges],
    }
    parts = [json.dumps(head)[1:-1]] + [
        f'"{name}": [\n  {_lines(each)}\n]' for name, each in rows.items()
    ]
    return f"{{{', '.join(parts)}}}\n"


def from_json(text: str) -> dict[str, Any]:
    """Returns the fields of the plan that `to_json` wrote, or raises a PlanFileError."""
    try:
        return _from_data(fields.an_object("plan", json.loads(text)))
    except (ValueError, RecursionError) as error:
        raise PlanFileError(
            f"this is not a plan that tfdist.research.LayerPlan.save has written: {error}"
        ) from error


def _row(thing: LayerNode | LayerEdge) -> dict[str, Any]:
    """Returns the fields that differ from their defaults, which are few."""
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


def _from_data(data: dict[str, Any]) -> dict[str, Any]:
    version = fields.get(data, "version", fields.whole(0))
    if version != VERSION:
        raise ValueError(
            f"the plan has version {version}, and this tfdist reads version {VERSION}: "
            "plan again"
        )
    fields.get(data, "kind", fields.one_of((KIND,)))
    devices = tuple(fields.get(data, "devices", _list_of(Device)))
    rows = fields.get(data, "nodes", fields.list_of(fields.an_object))
    nodes = tuple(_made(LayerNode, "node", row) for row in rows)
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
    return {
        "graph": LayerGraph(
            nodes, tuple(fields.get(data, "edges", _list_of(LayerEdge)))
        ),
        "devices": devices,
        "links": _links(fields.get(data, "links", fields.an_object)),
        "placed": placed,
        "microbatches": fields.get(data, "microbatches", fields.whole(1)),
        "compared": {n: _or_none(_number)(n, each) for n, each in compared.items()},
        "split": {name: _made(Split, name, each) for name, each in split.items()},
    }


def _made(kind: Any, key: str, value: Any) -> Any:
    """Returns a dataclass from an object; what has a default may be missing."""
    row = fields.an_object(key, value)
    return kind(
        **{
            each.name: fields.get(row, each.name, _PARSERS[each.type])
            for each in dataclasses.fields(kind)
            if each.name in row or each.default is dataclasses.MISSING
        }
    )


def _list_of(kind: Any) -> fields.Parser:
    return fields.list_of(partial(_made, kind))


def _number(key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise fields.RefusedError(key, "a number", value)
    return float(value)


def _or_none(parse: fields.Parser) -> fields.Parser:
    return lambda key, value: None if value is None else parse(key, value)


_PARSERS: dict[Any, fields.Parser] = {
    bool: fields.flag,
    float: _number,
    int: fields.whole(0),
    int | None: _or_none(fields.whole(0)),
    str: fields.text,
    LayerMatrix | None: _or_none(partial(_made, LayerMatrix)),
}


def _bandwidth(key: str, value: Any) -> float:
    return math.inf if value is None else _number(key, value)


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
