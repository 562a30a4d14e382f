"""The placement that follows a plan, and rejects a model that does not match."""

import gc
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tfdist._support.errors import Error
from tfdist.placement.partition import Partition
from tfdist.placement.variable_spec import VariableSpec
from tfdist.planning.match import Matcher, slot_kind
from tfdist.planning.plan import Plan
from tfdist.planning.weight import PlannedVariable, Weight


class PlanMismatchError(Error, ValueError):
    """The model or the cluster is not the one that was planned."""


@dataclass
class _Created:
    """A variable that was created for one in the plan."""

    index: int
    spec: VariableSpec
    variable: "weakref.ref[Any]"
    slots: list[str] = field(default_factory=list)

    @property
    def is_in_use(self) -> bool:
        return self.variable() is not None


class Planned:
    """Places every variable as planned.

    Variables match by Keras path, shape and dtype; see `tfdist.planning.match`. Among
    variables that match each other, the first created is the first in the plan, and an
    additional one goes where the first went: Keras creates some that it does not keep,
    for example when it loads a model. After the plan's last variable has been created,
    matching starts over, so that a model can be built or loaded a second time.

    A variable or optimizer slot that the plan does not have raises when it is created.
    One that is missing, or created more often than planned, raises before the first step
    of `fit`.

    Cost: O(log n) per variable, for a plan of n.

    Args:
        plan: From `tfdist.plan`, or `Plan.load`.

    Raises:
        TypeError: If `plan` is not a `Plan`.
    """

    def __init__(self, plan: Plan) -> None:
        if not isinstance(plan, Plan):
            raise TypeError(
                "Planned takes a plan, as tfdist.plan(build_model, num_ps) returns it "
                f"and tfdist.planning.Plan.load(path) reads it; received {plan!r}"
            )
        self.plan = plan
        # Kept across restarts: slots may be created after the weights of a next model.
        self._by_id: dict[int, _Created] = {}
        self.restart()

    def restart(self) -> None:
        """Starts over, for a model built again after an unfinished one."""
        self._matcher = Matcher(variable.spec for variable in self.plan.variables)
        self._left = len(self.plan.variables)
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
        """Returns how a variable is split; None if it is whole, and `place` applies.

        Raises:
            PlanMismatchError: If the plan has no such variable, or is for another
                number of ps.
        """
        return self._find(variable, num_ps).partition

    def created(self, spec: VariableSpec, variable: Any) -> None:
        """Records a variable that was created where `place` or `partition` said."""
        index = self._matcher.find(spec)
        if index is None:
            return
        self._left -= not self._matcher.taken[index]
        self._matcher.taken[index] += 1
        kept = _Created(index, spec, weakref.ref(variable))
        self._round.append(kept)
        self._by_id[id(variable)] = kept

    def check_slot(self, slot: VariableSpec, weight: Any) -> None:
        """Checks an optimizer slot before it is created next to its weight.

        Raises:
            PlanMismatchError: If the plan has no such slot for this weight.
        """
        created = self._record_of(weight)
        if created is None:
            return
        kind = slot_kind(slot.name, created.spec.name)
        planned = _slot_kinds(self.plan.variables[created.index].weight)
        if kind not in planned:
            raise PlanMismatchError(
                f"extra slot: the plan has no {kind} of {created.spec.name} "
                f"({slot.name}); it has {_listed(planned)}. Plan again from a function "
                "that compiles the model with the optimizer that trains it"
            )
        created.slots.append(kind)

    def check_complete(self, weights: Iterable[Any] = ()) -> None:
        """Checks that all planned variables and slots, and no others, were created.

        Args:
            weights: The weights of a model whose optimizer has created its slots.

        Raises:
            PlanMismatchError: If a variable or a slot is missing, or a variable was
                created more often than planned.
        """
        problem = self._problem()
        if problem is not None:
            # A variable in a reference cycle counts as in use until it is collected.
            gc.collect()
            problem = self._problem()
        if problem is None:
            problem = self._missing_slot(weights)
        if problem is not None:
            raise PlanMismatchError(problem)

    def _record_of(self, variable: Any) -> _Created | None:
        created = self._by_id.get(id(variable))
        # Python reuses the id of a variable that is gone.
        return created if created and created.variable() is variable else None

    def _problem(self) -> str | None:
        in_use = [each for each in self._round if each.is_in_use]
        if not in_use:
            return None
        variables = self.plan.variables
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
                    "unfinished, call Planned.restart() before building it again"
                )
            seen.add(each.index)
        return None

    def _missing_slot(self, weights: Iterable[Any]) -> str | None:
        for weight in weights:
            created = self._record_of(weight)
            if created is None:
                continue
            planned = _slot_kinds(self.plan.variables[created.index].weight)
            if absent := [kind for kind in planned if kind not in created.slots]:
                return (
                    f"missing slot: the plan has {absent[0]} of {created.spec.name}, "
                    f"and the optimizer has made {_listed(created.slots)}. Plan again "
                    "from a function that compiles the model with the optimizer that "
                    "trains it"
                )
        return None

    def _find(self, variable: VariableSpec, num_ps: int) -> PlannedVariable:
        if num_ps != self.plan.num_ps:
            raise PlanMismatchError(
                f"the plan is for {self.plan.num_ps} ps and the cluster has {num_ps}: "
                f"plan again with num_ps={num_ps}"
            )
        if not self._left:
            self.restart()
        index = self._matcher.find(variable)
        if index is not None:
            return self.plan.variables[index]
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
