"""One replica's part of one step: its share of the batch, and what it has written."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.synchronous.fit.kind import Kind
from tfdist.synchronous.fit.loss_kind import KindReader


@dataclass(eq=False)
class ReplicaStep:
    """The part of a step that one replica runs, while it is traced.

    Attributes:
        replica: The index of the replica in the cluster, from 0, a scalar.
        count: The number of examples of this replica, a scalar; 0 if those that it
            has stand in for none.
        total: The number of examples of all replicas, a scalar.
        has_varying_rows: Whether the batch holds ragged or sparse values.
        known_kinds: The kinds that `kind_of` finds, in the order in which it is asked,
            where the step is not traced but run eagerly.
        is_rehearsal: Whether there are no other replicas to exchange anything with.
        written: The Keras variables that the replica has set to a value of its own,
            and that value.
        kinds: The kinds that `kind_of` has found.
        is_updating: Whether what is written is the same on every replica anyhow.
        is_differentiating: Whether a gradient is being computed.
    """

    replica: tf.Tensor
    count: tf.Tensor
    total: tf.Tensor
    has_varying_rows: bool = False
    known_kinds: tuple[Kind, ...] | None = None
    is_rehearsal: bool = False
    written: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    kinds: list[Kind] = field(default_factory=list)
    is_updating: bool = False
    is_differentiating: bool = False

    def __post_init__(self) -> None:
        self._same: set[Any] = set()
        self._kinds_of_variables: dict[int, Kind] = {}
        self.reader = KindReader(
            lambda tensor: tensor.ref() in self._same,
            lambda handle: self._kinds_of_variables.get(id(handle), Kind.SAME),
            self.has_varying_rows,
        )

    @property
    def share(self) -> tf.Tensor:
        """The replica's part of the examples, from 0 to 1."""
        return tf.cast(self.count, tf.float32) / tf.cast(self.total, tf.float32)

    def scaled(self, value: tf.Tensor) -> tf.Tensor:
        """The replica's part of a mean over all examples, from its own mean."""
        return value * tf.cast(self.share, value.dtype)

    def unscaled(self, value: tf.Tensor) -> tf.Tensor:
        """The replica's own mean, from its part of the mean over all examples."""
        return tf.math.divide_no_nan(value, tf.cast(self.share, value.dtype))

    def counted(self, gradient: Any) -> Any:
        """The replica's gradient, or zeros if its examples stand in for none.

        The mean of a loss weighs those with 0 already; its sum does not.
        """
        if isinstance(gradient, tf.IndexedSlices):
            values = self.counted(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        # A choice and not a product, which would read and write the whole gradient.
        return tf.cond(
            self.count > 0, lambda: gradient, lambda: tf.zeros_like(gradient)
        )

    def kind_of(self, tensor: tf.Tensor) -> Kind:
        """What a number of this replica is to that of the whole batch."""
        if self.known_kinds is None:
            kind = self.reader.kind_of(tensor)
        elif len(self.kinds) < len(self.known_kinds):
            kind = self.known_kinds[len(self.kinds)]
        else:
            kind = Kind.UNKNOWN
        self.kinds.append(kind)
        return kind

    def is_given(self, batch: Any) -> None:
        """Notes the rows that the replica begins with, however it came by them."""
        self.reader.begin_with(tf.nest.flatten(batch, expand_composites=True))

    def is_same(self, values: Any) -> None:
        """Notes that tensors are the same on every replica."""
        for each in tf.nest.flatten(values, expand_composites=True):
            if tf.is_tensor(each):
                self._same.add(each.ref())

    def sums(self, variables: Sequence[Any]) -> None:
        """Notes that the value of each variable is a part: metrics are added up."""
        if not self.is_rehearsal:
            for each in variables:
                if each.aggregation == "sum":
                    self._kinds_of_variables[id(each.value.handle)] = Kind.SUM

    def wrote(self, variable: Any, value: Any) -> None:
        """Notes that the replica has set a Keras variable to a value of its own."""
        if self.is_updating:
            return
        # Run eagerly, it is not known; most such values are means, as moving ones are.
        is_eager = self.known_kinds is not None
        kind = Kind.MEAN if is_eager else self.kind_of(value)
        if kind is not Kind.SAME or id(variable) in self.written:
            self.written[id(variable)] = variable, value
            # What is read of it from now on is this replica's own too.
            self._kinds_of_variables[id(variable.value.handle)] = kind

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Notes nothing of what is written meanwhile."""
        before, self.is_updating = self.is_updating, True
        try:
            yield
        finally:
            self.is_updating = before
