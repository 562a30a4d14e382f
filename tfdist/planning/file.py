"""Writes and reads plans as JSON."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tfdist._support.errors import Error
from tfdist.placement.partition import Partition, Shard
from tfdist.placement.variable_spec import VariableSpec
from tfdist.planning import fields
from tfdist.planning.arguments import BALANCES
from tfdist.planning.weight import PlannedVariable, Weight

VERSION = 1
T = TypeVar("T")


class PlanFileError(Error, ValueError):
    """The file or text is not a valid plan."""


def to_json(
    num_ps: int, variables: Sequence[PlannedVariable], target: float, balance: str
) -> str:
    """Returns the fields of a plan as JSON, one variable per line."""
    rows = ",\n  ".join(json.dumps(_to_row(v)) for v in variables)
    head = {"version": VERSION, "num_ps": num_ps, "target": target, "balance": balance}
    return f'{json.dumps(head)[:-1]}, "variables": [\n  {rows}\n]}}\n'


def from_json(text: str) -> tuple[int, tuple[PlannedVariable, ...], float, str]:
    """Returns the fields of the plan that `to_json` wrote, in its order.

    Raises:
        PlanFileError: If the text is not a plan, or a variable is on no ps of it.
    """
    try:
        data = fields.an_object("plan", json.loads(text))
        version = fields.get(data, "version", fields.whole(0))
        if version != VERSION:
            raise PlanFileError(
                f"the plan has version {version}, and this tfdist reads version "
                f"{VERSION}: plan again"
            )
        num_ps = fields.get(data, "num_ps", fields.whole(1))
        rows = fields.get(data, "variables", fields.a_list)
        if not rows:
            raise fields.RefusedError("variables", "at least one variable", rows)
        variables = tuple(_from_row(row) for row in rows)
        target = fields.get(data, "target", fields.ratio)
        balance = fields.get(data, "balance", fields.one_of(BALANCES))
        _check_homes(variables, num_ps)
    except PlanFileError:
        # It is a ValueError too, and its message is complete.
        raise
    except ValueError as error:
        raise PlanFileError(
            f"this is not a plan that tfdist.planning.Plan.save has written: {error}"
        ) from error
    return num_ps, variables, target, balance


def read(path: str | os.PathLike[str], parse: Callable[[str], T]) -> T:
    """Returns the result of `parse` for a file; its `PlanFileError` names the file."""
    try:
        return parse(Path(path).read_bytes().decode())
    except (PlanFileError, UnicodeDecodeError) as error:
        what = "this is not text" if isinstance(error, UnicodeDecodeError) else error
        raise PlanFileError(f"{os.fspath(path)}: {what}") from error


def _check_homes(variables: Iterable[PlannedVariable], num_ps: int) -> None:
    for variable in variables:
        if isinstance(variable.home, Partition):
            variable.home.check(variable.spec, num_ps)
        elif not 0 <= variable.home < num_ps:
            raise PlanFileError(
                f"the plan has {num_ps} ps and puts {variable.spec.name} on ps "
                f"{variable.home}"
            )


def _to_row(variable: PlannedVariable) -> dict[str, Any]:
    row = {**dataclasses.asdict(variable.spec), "slots": list(variable.weight.slots)}
    if variable.weight.lookups is not None:
        row["lookups"] = variable.weight.lookups
    if not variable.weight.divisible:
        row["divisible"] = False
    for key in ("rows_only", "dealt"):
        if getattr(variable.weight, key):
            row[key] = True
    if isinstance(variable.home, Partition):
        return {**row, "axis": variable.home.axis, "shards": variable.home.bounds}
    return {**row, "ps": variable.home}


def _from_row(row: Any) -> PlannedVariable:
    name = fields.get(fields.an_object("variable", row), "name", fields.text)
    try:
        spec = VariableSpec(
            name,
            tuple(fields.get(row, "shape", fields.list_of(fields.whole(0)))),
            fields.get(row, "dtype", fields.text),
            fields.get(row, "itemsize", fields.whole(1)),
        )
        weight = Weight(
            spec,
            tuple(fields.get(row, "slots", fields.list_of(fields.text))),
            fields.get(row, "lookups", fields.whole(0), None),
            fields.get(row, "divisible", fields.flag, True),
            fields.get(row, "rows_only", fields.flag, False),
            fields.get(row, "dealt", fields.flag, False),
        )
        if "shards" in row:
            shards = fields.get(row, "shards", fields.list_of(_shard))
            return PlannedVariable(
                weight, Partition(fields.get(row, "axis", fields.whole(0)), shards)
            )
        # `_check_homes` rejects a negative ps, and names the variable and the number of
        # ps.
        return PlannedVariable(weight, fields.get(row, "ps", fields.whole(None)))
    except ValueError as error:
        raise ValueError(f"the variable {name}: {error}") from error


def _shard(key: str, value: Any) -> Shard:
    numbers = fields.list_of(fields.whole(None))(key, value)
    if len(numbers) != len(Shard._fields):
        raise fields.RefusedError(key, "a list of ps, start and stop", value)
    return Shard(*numbers)
