"""Records the variables that are created while a model is built."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.context import having
from tfdist.placement.variable_spec import VariableSpec
from tfdist.planning.match import Matcher
from tfdist.planning.weight import Weight
from tfdist.variables.creation import SplitRequest, being_created, spec_of
from tfdist.variables.shard_layout import MOD


@dataclass(frozen=True)
class _Variable:
    """A variable of the graph, and the Keras variable that owns it, if any."""

    spec: VariableSpec
    variable: tf.Variable
    request: SplitRequest
    keras_variable: "weakref.ref[keras.Variable] | None"

    @property
    def is_in_use(self) -> bool:
        # The graph keeps all of its variables; Keras keeps those of its models.
        return self.keras_variable is None or self.keras_variable() is not None


@dataclass
class Recording:
    """The variables of a graph without its slots, and the slots' names by `id`.

    `keras_variable` is the one that is being created, and `reference` the `id` of the
    variable whose slot is being created.
    """

    variables: list[_Variable] = field(default_factory=list)
    slots: dict[int, list[str]] = field(default_factory=dict)
    keras_variable: keras.Variable | None = None
    reference: int | None = None

    def record(self, variable: tf.Variable) -> None:
        """Adds a variable or a slot that was created."""
        of_keras = self.keras_variable
        name = variable.name.removesuffix(":0") if of_keras is None else of_keras.path
        if self.reference is not None:
            self.slots.setdefault(self.reference, []).append(name)
            return
        spec = spec_of(name, variable.shape, variable.dtype)
        reference = None if of_keras is None else weakref.ref(of_keras)
        request = being_created().request
        self.variables.append(_Variable(spec, variable, request, reference))

    def weights(self, divisible: set[int]) -> list[Weight]:
        """Returns the variables to plan; `divisible` has the `id`s that can be split."""
        return [
            Weight(
                each.spec,
                tuple(self.slots.get(id(each.variable), ())),
                divisible=id(each.variable) in divisible,
                rows_only=each.request.rows_only,
                dealt=each.request.partition_strategy == MOD,
            )
            for each in self._to_plan()
        ]

    def _to_plan(self) -> list[_Variable]:
        """Returns the variables in use, and those that match none in use."""
        # A Keras variable in a reference cycle counts as in use until it is collected.
        gc.collect()
        in_use = [each for each in self.variables if each.is_in_use]
        likes = Matcher(each.spec for each in in_use)
        return [
            each
            for each in self.variables
            if each.is_in_use or likes.find(each.spec) is None
        ]


@contextmanager
def recording() -> Iterator[Recording]:
    """Records the variables that are created in this context, in a graph."""
    created = Recording()

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        variable = next_creator(**kwargs)
        created.record(variable)
        return variable

    def initialize(variable: Any, value: Any) -> None:
        with having(created, keras_variable=variable):
            keras_initialize(variable, value)

    def add_slot(optimizer: Any, reference_variable: Any, *args: Any, **kw: Any) -> Any:
        reference = reference_variable
        if isinstance(reference, keras.Variable):
            reference = reference.value
        with having(created, reference=id(reference)):
            return keras_add_slot(optimizer, reference_variable, *args, **kw)

    # Keras exposes a variable's path and a slot's weight nowhere else. The patches last
    # only for this context.
    keras_initialize = keras.Variable._initialize
    optimizers = keras.optimizers.Optimizer
    keras_add_slot = optimizers.add_variable_from_reference
    with (
        having(keras.Variable, _initialize=initialize),
        having(optimizers, add_variable_from_reference=add_slot),
        tf.variable_creator_scope(creator),
    ):
        yield created
