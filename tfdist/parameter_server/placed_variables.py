"""The variables that a strategy has placed, and that still exist."""

import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.placement.report import PlacedVariable
from tfdist.variables.creation import spec_of, variable_path
from tfdist.variables.variable import ParameterServerVariable


class PlacedVariables:
    """Knows where variables are, and finds them by the handles that steps capture."""

    def __init__(self) -> None:
        # Weak references: the report must not keep the variables of a deleted model alive
        # on the ps.
        self._placed: list[tuple[weakref.ref[Any], PlacedVariable]] = []

    def record(self, variable: ParameterServerVariable) -> None:
        """Notes a variable that was created."""
        name = variable_path.get() or variable.name.removesuffix(":0")
        spec = spec_of(name, variable.shape, variable.dtype)
        device = tf.DeviceSpec.from_string(variable.device)
        placed = PlacedVariable(spec, device.task)
        self._placed.append((weakref.ref(variable), placed))

    def report(self) -> tuple[PlacedVariable, ...]:
        """Returns the variables that still exist, in creation order."""
        return tuple(
            placed for variable, placed in self._placed if variable() is not None
        )

    def existing(self) -> list[tuple[ParameterServerVariable, str]]:
        """Returns the variables that still exist, with their names."""
        return [
            (variable, placed.spec.name)
            for reference, placed in self._placed
            if (variable := reference()) is not None
        ]

    def of_handles(
        self, handles: Iterable[Any]
    ) -> list[tuple[ParameterServerVariable, str]]:
        """Returns the variables of these handles, with their names.

        What is not one of the strategy's, such as a lookup table, is left out.
        """
        # By identity: handles are tensors, which compare element by element.
        known = {
            id(variable.handle): (variable, name) for variable, name in self.existing()
        }
        return [known[id(each)] for each in handles if id(each) in known]
