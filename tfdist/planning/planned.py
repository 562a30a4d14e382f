"""The placement that follows a plan, and refuses a model that is another."""

import gc
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tfdist.placement.partition import Partition
from tfdist.placement.variable_spec import VariableSpec
from tfdist.planning.match import Matcher, slot_kind
from tfdist.planning.plan import Plan, PlannedVariable, Weight


class PlanMismatchError(ValueError):
    """The model, or the cluster, is not the one that was planned."""


@dataclass
class _Created:
    """A variable that was created as one of the plan."""

    index: int
    spec: VariableSpec
    variable: "weakref.ref[Any]"
    slots: list[str] = field(default_factory=list)

    @property
    def is_in_use(self) -> bool:
        return self.variable() is not None


class Planned:
    """Puts every variable where a plan says.

    A variable is known by its Keras path, shape and dtype, as
    `tfdist.planning.match` says. Of the same variables the first created
    is the first of the plan, and one more is put where the first was: Keras makes some
    that it does not keep, as when it loads a model. When the plan's last variable has
    been created it begins again, so that a model can be built or loaded a second time.

    What the plan does not have is refused when it is created, optimizer slots included;
    what is missing, or there more often than planned, before the first step of `fit`.

    Cost: O(log n) a variable, for a plan of n.

    Args:
        plan: From `tfdist.plan`, or `Plan.load`.

    Raises:
        TypeError: If it is no plan.
    """

    def __init__(self, plan: Plan) -> None:
        if not isinstance(plan, Plan):
            raise TypeError(
                "Planned takes a plan, as tfdist.plan(build_model, num_ps) returns it "
                f"and tfdist.Plan.load(path) reads it; received {plan!r}"
            )
        self._plan = plan
        # Slots may be created long after their weights, and after those of a model more.
        self._by_id: dict[int, _Created] = {}
        self.restart()

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self._plan

    def restart(self) -> None:
        """Begins again, for a model built anew after one that was left unfinished."""
        self._matcher = Matcher(variable.spec for variable in self._plan.variables)
        self._left = len(self._plan.variables)
        self._round: list[_Created] = []
        kept = self._by_id.items()
        self._by_id = {key: each for key, each in kept if each.is_in_use}

    def place(self, variable: VariableSpec, num_ps: int) -> int:
        """Returns the ps of a variable that is not split.

        Raises:
            PlanMismatchError: If the plan has no such variable, splits it, or is for
                another number of ps.
        """
        planned = self._find(variable, num_ps)
        if planned.partition is not None:
            raise PlanMismatchError(
                f"the plan splits {variable.name} over {len(planned.shares())} shards, "
                "and only a Keras variable created in strategy.scope() can be split"
            )
        return planned.shares()[0][0]

    def partition(self, variable: VariableSpec, num_ps: int) -> Partition | None:
        """Returns how a variable is split; None for one that `place` is asked for.

        Raises:
            PlanMismatchError: If the plan has no such variable, or is for another
                number of ps.
        """
        return self._find(variable, num_ps).partition

    def created(self, spec: VariableSpec, variable: Any) -> None:
        """Is told of a variable that has been created where this has said."""
        index = self._matcher.find(spec)
        if index is None:
            return
        self._left -= not self._matcher.taken[index]
        self._matcher.taken[index] += 1
        kept = _Created(index, spec, weakref.ref(variable))
        self._round.append(kept)
        self._by_id[id(variable)] = kept

    def check_slot(self, slot: VariableSpec, weight: Any) -> None:
        """Checks an optimizer slot before it is created beside its weight.

        Raises:
            PlanMismatchError: If the plan has no such slot of this weight.
        """
        created = self._record_of(weight)
        if created is None:
            return
        kind = slot_kind(slot.name, created.spec.name)
        planned = _slot_kinds(self._plan.variables[created.index].weight)
        if kind not in planned:
            raise PlanMismatchError(
                f"extra slot: the plan has no {kind} of {created.spec.name} "
                f"({slot.name}); it has {_listed(planned)}. Plan again from a function "
                "that compiles the model with the optimizer that trains it"
            )
        created.slots.append(kind)

    def check_complete(self, weights: Iterable[Any] = ()) -> None:
        """Checks that what has been created is what was planned, slots included.

        Args:
            weights: Of a model whose optimizer has made its slots.

        Raises:
            PlanMismatchError: If a variable or a slot is missing, or a variable is
                there more often than planned.
        """
        problem = self._problem()
        if problem is not None:
            # What is not in use any more may be waiting for Python's collector.
            gc.collect()
            problem = self._problem()
        if problem is None:
            problem = self._missing_slot(weights)
        if problem is not None:
            raise PlanMismatchError(problem)

    def _record_of(self, variable: Any) -> _Created | None:
        created = self._by_id.get(id(variable))
        return created if created and created.variable() is variable else None

    def _problem(self) -> str | None:
        in_use = [each for each in self._round if each.is_in_use]
        if not in_use:
            return None
        variables = self._plan.variables
        if self._left:
            first = variables[self._matcher.taken.index(0)].spec
            return (
                f"missing: the plan has {first.name} {_text(first)}, which the model "
                f"has not created ({self._left} of {len(variables)} are missing). Plan "
                "again from the function that builds the model"
            )
        seen: set[int] = set()
        for each in in_use:
            if each.index in seen:
                return (
                    f"extra: {each.spec.name} {_text(each.spec)} has been created more "
                    "often than the plan has it. Plan again from the function that "
                    "builds the model; or, if a model before this one was left "
                    "unfinished, call Planned.restart() before building it anew"
                )
            seen.add(each.index)
        return None

    def _missing_slot(self, weights: Iterable[Any]) -> str | None:
        for weight in weights:
            created = self._record_of(weight)
            if created is None:
                continue
            planned = _slot_kinds(self._plan.variables[created.index].weight)
            if absent := [kind for kind in planned if kind not in created.slots]:
                return (
                    f"missing slot: the plan has {absent[0]} of {created.spec.name}, "
                    f"and the optimizer has made {_listed(created.slots)}. Plan again "
                    "from a function that compiles the model with the optimizer that "
                    "trains it"
                )
        return None

    def _find(self, variable: VariableSpec, num_ps: int) -> PlannedVariable:
        if num_ps != self._plan.num_ps:
            raise PlanMismatchError(
                f"the plan is for {self._plan.num_ps} ps and the cluster has {num_ps}: "
                f"plan again with num_ps={num_ps}"
            )
        if not self._left:
            self.restart()
        index = self._matcher.find(variable)
        if index is not None:
            return self._plan.variables[index]
        planned = self._matcher.of_same_path(variable)
        if planned is None:
            raise PlanMismatchError(
                f"extra: the plan has no {variable.name} {_text(variable)}. Plan again "
                "from the function that builds the model"
            )
        what = "dtype" if planned.shape == variable.shape else "shape"
        raise PlanMismatchError(
            f"other {what}: {variable.name} has the {what} {getattr(variable, what)}, "
            f"and the plan has {planned.name} with {getattr(planned, what)}. Plan "
            "again from the function that builds the model"
        )


def _slot_kinds(weight: Weight) -> list[str]:
    return [slot_kind(slot, weight.spec.name) for slot in weight.slots]


def _listed(kinds: list[str]) -> str:
    return ", ".join(kinds) or "none"


def _text(variable: VariableSpec) -> str:
    return f"of shape {variable.shape} and dtype {variable.dtype}"
