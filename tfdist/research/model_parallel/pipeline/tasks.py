"""The tasks of a step: a stage computes a microbatch, forward or backward."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Gradient, Nest
from tfdist.keras.computation import computing
from tfdist.research.model_parallel.pipeline.added_losses import scaled_activities
from tfdist.research.model_parallel.pipeline.copies import (
    Copies,
    Originals,
    add_up,
    assign_changes,
    dense,
    total_of,
)
from tfdist.research.model_parallel.pipeline.devices import on
from tfdist.research.model_parallel.pipeline.microbatches import carried, part_of
from tfdist.research.model_parallel.pipeline.pipeline import Pipeline, Stage
from tfdist.research.model_parallel.pipeline.recompute import (
    Drawing,
    DrawingAgain,
    Draws,
    Found,
    refusing_unrepeatable,
)


@dataclass
class _Kept:
    """Values that a stage keeps of a microbatch until its backward task."""

    taken: dict[int, Nest]
    given: dict[int, Nest] = field(default_factory=dict)
    losses: list[tf.Tensor] = field(default_factory=list)
    tape: Any = None
    draws: Draws = field(default_factory=list)
    found: Found = field(default_factory=dict)


class _Replica:
    """One replica of a stage within a step.

    Attributes:
        variables: The variables that it computes with.
        after: The operations that its next task waits for.
        sums: The sums of its gradients of the weights, or None.
    """

    def __init__(self, stage: Stage, replica: int) -> None:
        self.device = stage.devices[replica]
        self.variables: Originals | Copies = (
            Originals(stage) if len(stage.devices) == 1 else Copies(stage, self.device)
        )
        self.after: list[Any] = []
        self.sums: list[Any] = [None] * len(stage.weights)

    def add_up(self, gradients: Sequence[Gradient | None]) -> list[Gradient | None]:
        """Adds gradients of the weights, and returns the sums."""
        self.sums = [add_up(*pair) for pair in zip(self.sums, gradients, strict=True)]
        return self.sums


class Tasks:
    """Adds the tasks of one step to the graph that is being traced.

    The tasks of a replica of a stage run one after the other, in the order in which they
    are added. Inputs are those of the whole batch, or empty if they arrive. `added` is what
    layers passed to `add_loss`, for the whole batch.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: Sequence[Any],
        bounds: Sequence[tuple[int, int]],
        training: bool,
        recompute: bool = False,
        replica_of: Sequence[int] = (),
    ) -> None:
        self._pipeline = pipeline
        self._replica_of = replica_of or [0] * len(bounds)
        self._training, self._recompute = training, recompute
        rows = bounds[-1][1]
        self._shares = [(end - start) / rows for start, end in bounds]
        self._values: dict[tuple[int, int], Nest] = {}
        for number, (start, end) in enumerate(bounds if inputs else ()):
            for each, value in zip(pipeline.inputs, inputs, strict=True):
                self._values[number, each] = part_of(value, start, end)
        self._replicas: dict[tuple[int, int], _Replica] = {}
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._gradients: dict[tuple[int, int], list[Gradient]] = defaultdict(list)
        self.added: list[Any] = []

    def device(self, number: int, microbatch: int) -> str:
        """Returns the device on which a stage computes a microbatch."""
        return self._pipeline.stages[number].devices[self._replica_of[microbatch]]

    def arrive(self, microbatch: int, values: Mapping[int, Nest]) -> None:
        """Adds values of a microbatch that other stages computed, or inputs."""
        self._values |= {(microbatch, each): value for each, value in values.items()}

    def values(self, microbatch: int, ids: Sequence[int]) -> list[Nest]:
        """Returns values of a microbatch."""
        return [self._values[microbatch, each] for each in ids]

    def draws(self, number: int, microbatch: int) -> Draws:
        """Returns the seeds that a forward task has drawn, under `recompute`."""
        return self._kept[number, microbatch].draws

    def keep(
        self, number: int, microbatch: int, taken: Mapping[int, Nest], draws: Draws
    ) -> None:
        """Keeps what a stage needs to compute a forward task of elsewhere again."""
        self._kept[number, microbatch] = _Kept(dict(taken), draws=list(draws))

    def add_gradients(
        self, microbatch: int, ids: Sequence[int], gradients: Sequence[Gradient | None]
    ) -> None:
        """Adds gradients of the loss by some values of a microbatch; None adds nothing."""
        for each, gradient in zip(ids, gradients, strict=True):
            if gradient is not None:
                self._gradients[microbatch, each].append(gradient)

    def gradients(self, microbatch: int, ids: Sequence[int]) -> list[Gradient | None]:
        """Returns the sums of the gradients by some values so far, or None."""
        found = [self._gradients.get((microbatch, each)) for each in ids]
        return [tf.add_n(each) if each else None for each in found]

    def forward(self, number: int, microbatch: int) -> None:
        """Adds the forward task of a stage."""
        stage = self._pipeline.stages[number]
        replica = self._replica_of[microbatch]
        with self._task(self._of(number, microbatch)) as results:
            taken = {id: carried(self._values[microbatch, id]) for id in stage.takes}
            kept = _Kept(taken)
            has_tape = self._training and not self._recompute
            compute = self._compute_on_tape if has_tape else self._compute
            # Without either, Keras draws its own seeds, and nobody needs them again.
            draws = self._recompute or replica
            keeping = computing(Drawing(kept.draws, replica, kept.found))
            with keeping if draws else contextlib.nullcontext():
                compute(number, microbatch, kept)
            results += kept.given.values()
        for id, value in kept.given.items():
            self._values[microbatch, id] = value
        share = self._shares[microbatch]
        self.added += [each * tf.cast(share, each.dtype) for each in kept.losses]
        if self._training:
            if self._recompute:
                # Without what was computed: not to keep that is what `recompute` is
                # for.
                kept = _Kept(taken, draws=kept.draws, found=kept.found)
            self._kept[number, microbatch] = kept

    def backward(self, number: int, microbatch: int, scale: tf.Tensor | float) -> None:
        """Adds the backward task of a stage; the loss is multiplied by the scale."""
        kept = self._kept.pop((number, microbatch))
        of = self._of(number, microbatch)
        with self._task(of) as results:
            if self._recompute:
                # A copy of what was taken: TensorFlow would take equal operations on the
                # same tensor for one, and keep its result.
                kept.taken = {id: carried(value) for id, value in kept.taken.items()}
                with computing(DrawingAgain(kept.draws)), refusing_unrepeatable():
                    self._compute_on_tape(number, microbatch, kept, is_again=True)
            passed = self._pass_on(number, microbatch, kept, scale)
            sums = of.add_up(passed[len(kept.taken) :])
            by_taken = dict(zip(kept.taken, passed, strict=False))
            by_taken = {id: dense(g) for id, g in by_taken.items() if g is not None}
            sums = [each for each in sums if each is not None]
            results += tf.nest.flatten([*by_taken.values(), *sums], True)
        for id, gradient in by_taken.items():
            self._gradients[microbatch, id].append(gradient)

    def start_from(self, number: int, gradients: Sequence[Gradient | None]) -> None:
        """Begins the sums of a stage with gradients of what is no example's."""
        self._replica(number, 0).add_up(gradients)

    def sums(self, number: int) -> list[Any]:
        """Returns the sums of the gradients of a stage's weights, or None."""
        weights = self._pipeline.stages[number].weights
        return total_of([each.sums for each in self._replicas_of(number)], weights)

    def assign_changes(self) -> None:
        """Assigns the changes of layers in copies of their variables."""
        for number in range(len(self._pipeline.stages)):
            copies = [each.variables for each in self._replicas_of(number)]
            assign_changes([each for each in copies if isinstance(each, Copies)])

    def _replica(self, number: int, replica: int) -> _Replica:
        if (number, replica) not in self._replicas:
            stage = self._pipeline.stages[number]
            self._replicas[number, replica] = _Replica(stage, replica)
        return self._replicas[number, replica]

    def _of(self, number: int, microbatch: int) -> _Replica:
        return self._replica(number, self._replica_of[microbatch])

    def _replicas_of(self, number: int) -> list[_Replica]:
        return [self._replica(number, each) for each in sorted(set(self._replica_of))]

    @contextlib.contextmanager
    def _task(self, of: _Replica) -> Iterator[list[Any]]:
        results: list[Any] = []
        # Otherwise TensorFlow would run all microbatches at once, and keep all tensors.
        with on(of.device), tf.control_dependencies(of.after):
            yield results
            of.after = [tf.group(*(r for r in results if r is not None))]

    def _compute(
        self, number: int, microbatch: int, kept: _Kept, is_again: bool = False
    ) -> None:
        stage = self._pipeline.stages[number]
        variables = self._of(number, microbatch).variables
        values = dict(kept.taken)
        share = self._shares[microbatch]
        with variables.in_use(kept.found, is_again) as losses_of:
            for node in stage.nodes:
                with scaled_activities(node.operation, share):
                    outputs = _tf.call_node(node, values, self._training)
                values |= {id(s): v for s, v in zip(node.outputs, outputs, strict=True)}
                kept.losses += losses_of(node.operation)
        kept.given = {id: values[id] for id in stage.gives}

    def _compute_on_tape(
        self, number: int, microbatch: int, kept: _Kept, is_again: bool = False
    ) -> None:
        copies = self._of(number, microbatch).variables.copies
        with tf.GradientTape() as kept.tape:
            for each in (*kept.taken.values(), *copies):
                if _is_float(each):
                    kept.tape.watch(each)
            self._compute(number, microbatch, kept, is_again)

    def _pass_on(
        self, number: int, microbatch: int, kept: _Kept, scale: tf.Tensor | float
    ) -> list[Any]:
        """Returns the gradients by the inputs, and by the weights."""
        weights = self._of(number, microbatch).variables.weights
        targets, gradients = [], []
        for id, value in kept.given.items():
            parts = self._gradients.pop((microbatch, id), [])
            if parts and _is_float(value):
                targets.append(value)
                # Copied here first: the parts come from several devices.
                gradients.append(tf.add_n([tf.identity(each) for each in parts]))
        for loss in kept.losses:
            targets.append(loss)
            share = tf.cast(self._shares[microbatch], loss.dtype)
            gradients.append(
                tf.fill(tf.shape(loss), share * tf.cast(scale, loss.dtype))
            )
        taken = [
            # Nobody takes gradients by the inputs of the model.
            value if _is_float(value) and id not in self._pipeline.inputs else None
            for id, value in kept.taken.items()
        ]
        present = [each for each in taken if each is not None]
        sources = present + weights
        if not targets or not sources:
            return [None] * (len(taken) + len(weights))
        found = iter(kept.tape.gradient(targets, sources, output_gradients=gradients))
        return [None if each is None else next(found) for each in taken] + list(found)


def _is_float(value: Nest) -> bool:
    return value is not None and value.dtype.is_floating
