"""One replica's part of one step: its share of the batch and the variables it wrote."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import having
from tfdist._support.errors import RefusalError
from tfdist._support.types import Gradient, Nest
from tfdist.keras.graph import function_being_traced, handle_of, inputs_of
from tfdist.synchronous.reader.reduction import INDIVISIBLE, Reduction
from tfdist.synchronous.reader.reduction_reader import ReductionReader
from tfdist.synchronous.replica.own_seed import OwnSeed

# The kinds of what is computed from the states of metrics.
_OF_STATES = INDIVISIBLE | {Reduction.SUM, Reduction.OTHER}


class NestedFunctionError(RefusalError):
    """A step exchanges numbers between replicas in a `tf.function` that it calls."""


@dataclass(eq=False)
class ReplicaStep:
    """The part of a step that one replica runs, while it is traced.

    Attributes:
        replica: The index of the replica in the cluster, from 0, a scalar.
        count: The number of examples of this replica, a scalar. 0 if its one row is a
            stand-in that does not count.
        total: The number of examples of all replicas, a scalar.
        spokesman: The last replica that has examples; None if it is the last one of all.
        has_varying_rows: Whether the batch holds ragged or sparse values.
        has_rows: Whether it is known that `count` is not 0.
        known_kinds: The results of `kind_of`, in the order of its calls, if the step
            runs eagerly: without a graph, they come from a rehearsal.
        is_rehearsal: Whether one replica is traced alone, with none to exchange with.
        written: The Keras variables that this replica has assigned, with their values.
        kinds: The kinds that `kind_of` has returned.
        whole_batch: Whether what does not separate over examples is computed on the whole
            batch.
        is_mean: Whether what it computes from its rows is a mean, by the user's word.
        metric: The metric that is being updated.
        given: What it is being updated with.
        gathered: The tensors whose rows were gathered from all replicas, with all rows.
        gathered_in: The graph in which they were.
        is_updating: Whether current writes are equal on all replicas already.
        is_differentiating: Whether a gradient is being computed.
        differentiates_same: Whether it is one of numbers that every replica has alike,
            weighted by the replicas' shares.
        is_differentiable: Whether a gradient of the step may be differentiated again.
        shapes: Whether the shapes of what it exchanges are fixed, for all exchanges of all
            replicas of this process.
        model: The model whose step it is.
        assigned: The identities of the handles of Keras variables that it assigns.
        reduced: The results of reductions that are not tfdist's own, with the
            `tf.distribute.ReduceOp` and the kind of what was reduced.
        token: What the next exchange that a tape may go back through depends on.
        own_seed: The seed from which the replica draws numbers.
    """

    replica: tf.Tensor
    count: tf.Tensor
    total: tf.Tensor
    has_varying_rows: bool = False
    has_rows: bool = False
    known_kinds: tuple[Reduction, ...] | None = None
    spokesman: tf.Tensor | None = None
    is_rehearsal: bool = False
    written: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    kinds: list[Reduction] = field(default_factory=list)
    whole_batch: bool = True
    is_mean: bool = False
    metric: keras.Metric | None = None
    given: list[Any] = field(default_factory=list)
    gathered: dict[int, tuple[Any, tf.Tensor]] = field(default_factory=dict)
    gathered_in: Any = None
    is_updating: bool = False
    is_differentiating: bool = False
    differentiates_same: bool = False
    is_differentiable: bool = False
    shapes: list[bool] = field(default_factory=list)
    model: Any = None
    assigned: set[int] = field(default_factory=set)
    reduced: dict[Any, tuple[Any, Reduction]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._function = function_being_traced()
        self._graph = tf.compat.v1.get_default_graph()
        self.own_seed = OwnSeed(self.replica)
        self.token = tf.zeros([])
        self._given: dict[Hashable, Reduction] = {}
        self._states: set[int] = set()
        self._kinds_of_variables: dict[int, Reduction] = {}
        self.reader = ReductionReader(
            lambda tensor: self._given.get(tensor.ref()),
            lambda handle: self._kinds_of_variables.get(id(handle), Reduction.SAME),
            self.has_varying_rows,
            self.whole_batch,
        )

    @property
    def share(self) -> tf.Tensor:
        """The fraction of the batch's examples that this replica has, from 0 to 1."""
        return tf.cast(self.count, tf.float32) / tf.cast(self.total, tf.float32)

    @property
    def replicas(self) -> int:
        """The number of replicas that take the step together."""
        if self.is_rehearsal:
            return 1
        return int(tf.distribute.get_replica_context().num_replicas_in_sync)

    @property
    def weight(self) -> tf.Tensor:
        """The factor of a mean over this replica's rows in the mean of all replicas'.

        It is 1 where all replicas have as many rows.
        """
        return self.share * tf.cast(self.replicas, tf.float32)

    def scaled(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the replica's part of the batch's mean, from its own mean."""
        return value * tf.cast(self.share, value.dtype)

    def unscaled(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the replica's own mean, from its part of the batch's mean."""
        return tf.math.divide_no_nan(value, tf.cast(self.share, value.dtype))

    def counted(self, gradients: Nest) -> Nest:
        """Returns the replica's gradients, or zeros if its row does not count.

        A mean gives that row the weight 0 already; a sum does not.
        """
        flat = tf.nest.flatten(gradients)
        values = [getattr(each, "values", each) for each in flat if each is not None]
        if self.has_rows or not values:
            return gradients
        # A condition, because a product would read and write the whole gradients; one for
        # all of them, because each is traced.
        counted = iter(
            tf.cond(
                self.count > 0,
                lambda: [tf.identity(each) for each in values],
                lambda: [tf.zeros_like(each) for each in values],
            )
        )
        flat = [on_values(lambda _: next(counted), each) for each in flat]
        return tf.nest.pack_sequence_as(gradients, flat)

    def note_shapes(self, values: Sequence[Nest]) -> None:
        """Notes whether what it exchanges has the same shape in every step."""
        self.shapes += [
            not isinstance(each, tf.IndexedSlices) and each.shape.is_fully_defined()
            for each in values
        ]

    def check_can_exchange(self) -> None:
        """Checks that what is being traced is the step, and no function within it.

        A collective gets the number by which workers match it when its function is called,
        which must be outside of any graph.

        Raises:
            NestedFunctionError: If it is a function that the step calls.
        """
        is_eager = self.known_kinds is not None
        function = function_being_traced()
        if is_eager or function is self._function:
            return
        raise NestedFunctionError(
            f"the step computes a gradient, a sum or a state of all replicas in "
            f"{function.name!r}, a tf.function that it calls, where replicas cannot "
            "exchange numbers. Remove that @tf.function: fit compiles the whole step"
        )

    def check_not_within(self, what: str, instead: str) -> None:
        """Checks that what is being traced is no branch and no loop of the step.

        Raises:
            NestedFunctionError: If it is one.
        """
        graph = tf.compat.v1.get_default_graph()
        if self.known_kinds is None and graph is not self._graph:
            raise NestedFunctionError(
                f"{what} within a tf.cond, a loop or a tf.function of the step. {instead}"
            )

    def proceed(self, token: tf.Tensor) -> None:
        """Makes the next exchange that a tape may go back through depend on a token."""
        # What a branch of a condition computes is not known outside of it.
        if getattr(token, "graph", None) is getattr(self.token, "graph", None):
            self.token = token

    def kind_of(self, tensor: tf.Tensor) -> Reduction:
        """Returns how a number of this replica relates to the whole batch's."""
        if self.known_kinds is None:
            kind = self.reader.kind_of(tensor)
        elif len(self.kinds) < len(self.known_kinds):
            kind = self.known_kinds[len(self.kinds)]
        else:
            kind = Reduction.UNKNOWN
        self.kinds.append(kind)
        return kind

    def is_given(self, batch: Nest) -> None:
        """Marks the tensors of a batch as rows, whatever they were computed from."""
        self.reader.begin_with(batch)

    def is_same(self, values: Nest) -> None:
        """Marks tensors as equal on every replica."""
        for each in tf.nest.flatten(values, expand_composites=True):
            if tf.is_tensor(each):
                self._given[each.ref()] = Reduction.SAME

    def is_drawn(self, seed: tf.Tensor) -> None:
        """Marks a seed as another one on each replica."""
        self._given[seed.ref()] = Reduction.DRAWN

    def sums(self, variables: Sequence[tf.Variable]) -> None:
        """Marks each variable's value as a part: replicas' metric states are added up."""
        if not self.is_rehearsal:
            for each in variables:
                is_state = each.synchronization == "on_read"
                if is_state and each.aggregation == "sum":
                    self._states.add(id(_tf.value_of(each).handle))
                    self._kinds_of_variables[id(_tf.value_of(each).handle)] = (
                        Reduction.SUM
                    )

    def states_in(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Returns the metric states that a sum was computed from.

        They count on a replica without rows, too: it has those of earlier steps. Without a
        graph they cannot be seen.
        """
        if self.known_kinds is not None:
            return []
        found: list[tf.Tensor] = []
        visited, pending = set(), [tensor]
        while pending:
            each = pending.pop()
            kind = self.reader.kind_of(each)
            if each.ref() in visited or kind not in _OF_STATES:
                continue
            visited.add(each.ref())
            if each.op.type == "ReadVariableOp":
                if id(handle_of(each.op)) in self._states:
                    found.append(each)
                continue
            pending += inputs_of(each)
        return found

    def sees(self, variable: keras.Variable) -> None:
        """Notes a Keras variable that the step assigns, as opposed to others."""
        self.assigned.add(id(_tf.value_of(variable).handle))

    def wrote(self, variable: keras.Variable, value: tf.Tensor) -> None:
        """Records that the replica has assigned a Keras variable."""
        if self.is_updating:
            return
        # In eager mode the kind is unknown. Most such values are means: moving averages.
        is_eager = self.known_kinds is not None
        kind = Reduction.MEAN if is_eager else self.kind_of(value)
        if kind is not Reduction.SAME or id(variable) in self.written:
            self.written[id(variable)] = variable, value
            # Later reads of the variable in this step return this replica's own value.
            self._kinds_of_variables[id(_tf.value_of(variable).handle)] = kind

    def updating(self) -> AbstractContextManager[None]:
        """Records no writes within this context."""
        return having(self, is_updating=True)

    def differentiating(
        self, targets: Sequence[tf.Tensor] | None
    ) -> AbstractContextManager[None]:
        """Notes that a tape computes a gradient within this context.

        Layers that recompute their outputs call a tape of their own within it.

        Args:
            targets: What is differentiated; None if it has weights of its own.
        """
        is_same = (
            targets is not None
            and not self.is_differentiable
            and all(self.kind_of(each) is Reduction.SAME for each in targets)
        )
        return having(self, is_differentiating=True, differentiates_same=is_same)


def on_values(change: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """Returns a gradient with other values: a tensor, `IndexedSlices`, or None for None."""
    if isinstance(gradient, tf.IndexedSlices):
        values = change(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return None if gradient is None else change(gradient)
