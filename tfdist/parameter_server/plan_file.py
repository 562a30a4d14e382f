"""A plan as JSON. Nothing here imports TensorFlow."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from tfdist.parameter_server.partition import Partition
from tfdist.parameter_server.placement import VariableSpec
from tfdist.parameter_server.plan import BALANCES, Plan, PlannedVariable, Weight

VERSION = 1


class PlanFileError(ValueError):
    """A file that holds no plan."""


def to_json(plan: Plan) -> str:
    """Returns the plan as JSON, one variable a line."""
    rows = ",\n  ".join(json.dumps(_to_row(v)) for v in plan.variables)
    head = {
        "version": VERSION,
        "num_ps": plan.num_ps,
        "target": plan.target,
        "balance": plan.balance,
    }
    return f'{json.dumps(head)[:-1]}, "variables": [\n  {rows}\n]}}\n'


def from_json(text: str) -> Plan:
    """Returns the plan that `to_json` wrote.

    Raises:
        PlanFileError: If it is none, or a variable lives on no ps.
        PartitionError: If shards do not cover their variable.
    """
    try:
        data = json.loads(text)
        if data["version"] != VERSION:
            raise PlanFileError(
                f"the plan has version {data['version']}, and this tfdist reads "
                f"version {VERSION}: plan again"
            )
        plan = Plan(
            int(data["num_ps"]),
            tuple(_from_row(row) for row in data["variables"]),
            float(data["target"]),
            BALANCES[BALANCES.index(data["balance"])],
        )
    except PlanFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanFileError(
            "this is not a plan that tfdist.Plan.save has written: "
            f"{type(error).__name__}: {error}"
        ) from error
    _check_homes(plan)
    return plan


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file, whole or not at all.

    Raises:
        OSError: If it cannot be written.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _check_homes(plan: Plan) -> None:
    if plan.num_ps < 1:
        raise PlanFileError(f"the plan has {plan.num_ps} ps; it has at least 1")
    for each in plan.variables:
        if isinstance(each.home, Partition):
            each.home.check(each.spec, plan.num_ps)
        elif not 0 <= each.home < plan.num_ps:
            raise PlanFileError(
                f"the plan has {plan.num_ps} ps and puts {each.spec.name} on ps "
                f"{each.home}"
            )


def _to_row(variable: PlannedVariable) -> dict[str, Any]:
    row = {**dataclasses.asdict(variable.spec), "slots": list(variable.weight.slots)}
    if variable.weight.lookups is not None:
        row["lookups"] = variable.weight.lookups
    if not variable.weight.divisible:
        row["divisible"] = False
    if isinstance(variable.home, Partition):
        return {**row, "axis": variable.home.axis, "shards": variable.home.bounds}
    return {**row, "ps": variable.home}


def _from_row(row: dict[str, Any]) -> PlannedVariable:
    spec = VariableSpec(
        str(row["name"]),
        tuple(map(int, row["shape"])),
        str(row["dtype"]),
        int(row["itemsize"]),
    )
    lookups = row.get("lookups")
    weight = Weight(
        spec,
        tuple(map(str, row["slots"])),
        None if lookups is None else int(lookups),
        bool(row.get("divisible", True)),
    )
    if "shards" in row:
        return PlannedVariable(weight, Partition(int(row["axis"]), row["shards"]))
    return PlannedVariable(weight, int(row["ps"]))
