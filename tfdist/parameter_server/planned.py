"""The placement that follows a plan, and refuses a model that is another."""

import re
from collections import defaultdict, deque

from tfdist.parameter_server.partition import Partition
from tfdist.parameter_server.placement import VariableSpec
from tfdist.parameter_server.plan import Plan, PlannedVariable

# Keras numbers the names that it gives, from the first layer of the process.
NUMBER = re.compile(r"_\d+(?=/|$)")


class PlanMismatchError(ValueError):
    """The model, or the cluster, is not the one that was planned."""


class Planned:
    """Puts every variable where a plan says.

    A variable is known by its Keras path, shape and dtype. Numbers at the end of names
    do not count, since Keras goes on counting from model to model (`dense`, then
    `dense_1`): of the variables with the same path the first created is the first of
    the plan. When the plan's last variable has been created it begins again, so that a
    model can be built or loaded a second time.

    Cost: O(1) a variable.

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
        self.restart()

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self._plan

    def restart(self) -> None:
        """Begins again, for a model built anew after one that was left unfinished."""
        self._awaited: dict[str, deque[PlannedVariable]] = defaultdict(deque)
        for variable in self._plan.variables:
            self._awaited[_key(variable.spec)].append(variable)
        self._left = len(self._plan.variables)

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
        self._take(variable)
        return planned.shares()[0][0]

    def partition(self, variable: VariableSpec, num_ps: int) -> Partition | None:
        """Returns how a variable is split; None for one that `place` is asked for.

        Raises:
            PlanMismatchError: If the plan has no such variable, or is for another
                number of ps.
        """
        partition = self._find(variable, num_ps).partition
        if partition is not None:
            self._take(variable)
        return partition

    def check_complete(self) -> None:
        """Checks that every variable of the plan has been created.

        Raises:
            PlanMismatchError: If one is missing.
        """
        if self._left == len(self._plan.variables):
            return
        missing = {id(v) for left in self._awaited.values() for v in left}
        first = next(v.spec for v in self._plan.variables if id(v) in missing)
        raise PlanMismatchError(
            f"missing: the plan has {first.name} {_text(first)}, which the model has "
            f"not created ({self._left} of {len(self._plan.variables)} are missing). "
            "Plan again from the function that builds the model"
        )

    def _find(self, variable: VariableSpec, num_ps: int) -> PlannedVariable:
        if num_ps != self._plan.num_ps:
            raise PlanMismatchError(
                f"the plan is for {self._plan.num_ps} ps and the cluster has {num_ps}: "
                f"plan again with num_ps={num_ps}"
            )
        left = self._awaited[_key(variable)]
        if not left:
            raise PlanMismatchError(
                f"extra: the plan has no {variable.name} {_text(variable)}{self._why()}. "
                "Plan again from the function that builds the model"
            )
        planned = left[0].spec
        for what in ("shape", "dtype"):
            wanted, received = getattr(planned, what), getattr(variable, what)
            if wanted != received:
                raise PlanMismatchError(
                    f"other {what}: {variable.name} has the {what} {received}, and "
                    f"the plan has {planned.name} with {wanted}. Plan again from the "
                    "function that builds the model"
                )
        return left[0]

    def _why(self) -> str:
        created = len(self._plan.variables) - self._left
        if not created:
            return ""
        return (
            f", after {created} of its {len(self._plan.variables)} variables. A model "
            "built anew before the last one was complete needs Planned.restart()"
        )

    def _take(self, variable: VariableSpec) -> None:
        self._awaited[_key(variable)].popleft()
        self._left -= 1
        if not self._left:
            self.restart()


def _key(variable: VariableSpec) -> str:
    return NUMBER.sub("", variable.name)


def _text(variable: VariableSpec) -> str:
    return f"of shape {variable.shape} and dtype {variable.dtype}"
