"""The tasks of a step: a stage computes a microbatch, forward or backward."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.pipeline.added_losses import scaled_activities
from tfdist.pipeline.devices import on
from tfdist.pipeline.gradients import add_up, dense
from tfdist.pipeline.microbatches import carried, part_of
from tfdist.pipeline.pipeline import Pipeline, Stage
from tfdist.pipeline.recompute import Draws, drawing, drawing_again


@dataclass
class _Kept:
    """What a stage keeps of a microbatch from its forward to its backward task."""

    taken: dict[int, Any]
    given: dict[int, Any] = field(default_factory=dict)
    losses: list[Any] = field(default_factory=list)
    tape: Any = None
    draws: Draws = field(default_factory=list)


class Tasks:
    """Adds the tasks of one step to the graph that is being traced.

    The tasks of a stage run one after the other, in the order in which they are added.

    Args:
        pipeline: The model in stages.
        inputs: The inputs of the model, for the whole batch; empty if they arrive.
        bounds: The rows of each microbatch.
        training: Whether the model is trained.
        recompute: Whether a backward task computes the forward one again.

    Attributes:
        added: What layers passed to `add_loss`, for the whole batch.
        sums: Of each stage, the sums of the gradients of its weights, or None.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: Sequence[Any],
        bounds: Sequence[tuple[int, int]],
        training: bool,
        recompute: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._training, self._recompute = training, recompute
        rows = bounds[-1][1]
        self._shares = [(end - start) / rows for start, end in bounds]
        self._values: dict[tuple[int, int], Any] = {}
        for number, (start, end) in enumerate(bounds if inputs else ()):
            for each, value in zip(pipeline.inputs, inputs, strict=True):
                self._values[number, each] = part_of(value, start, end)
        self._after: list[list[Any]] = [[] for _ in pipeline.stages]
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._gradients: dict[tuple[int, int], list[Any]] = defaultdict(list)
        self.added: list[Any] = []
        self.sums: list[list[Any]] = [[None] * len(s.weights) for s in pipeline.stages]

    def arrive(self, microbatch: int, values: Mapping[int, Any]) -> None:
        """Adds values of a microbatch that other stages computed, or inputs."""
        self._values |= {(microbatch, each): value for each, value in values.items()}

    def values(self, microbatch: int, ids: Sequence[int]) -> list[Any]:
        """Returns values of a microbatch."""
        return [self._values[microbatch, each] for each in ids]

    def draws(self, number: int, microbatch: int) -> Draws:
        """Returns the seeds that a forward task has drawn, under `recompute`."""
        return self._kept[number, microbatch].draws

    def keep(
        self, number: int, microbatch: int, taken: Sequence[Any], draws: Draws
    ) -> None:
        """Has a stage compute a forward task again that was computed elsewhere."""
        takes = self._pipeline.stages[number].takes
        self._kept[number, microbatch] = _Kept(
            dict(zip(takes, taken, strict=True)), draws=list(draws)
        )

    def add_gradients(
        self, microbatch: int, ids: Sequence[int], gradients: Sequence[Any]
    ) -> None:
        """Adds gradients of the loss by some values of a microbatch; None adds nothing."""
        for each, gradient in zip(ids, gradients, strict=True):
            if gradient is not None:
                self._gradients[microbatch, each].append(gradient)

    def gradients(self, microbatch: int, ids: Sequence[int]) -> list[Any]:
        """Returns the sums of the gradients by some values so far, or None."""
        found = [self._gradients.get((microbatch, each)) for each in ids]
        return [tf.add_n(each) if each else None for each in found]

    def forward(self, number: int, microbatch: int) -> None:
        """Adds the forward task of a stage."""
        stage = self._pipeline.stages[number]
        with self._task(number) as results:
            taken = {id: carried(self._values[microbatch, id]) for id in stage.takes}
            kept = _Kept(taken)
            if not self._training:
                self._compute(stage, microbatch, kept)
            elif self._recompute:
                with drawing(kept.draws):
                    self._compute(stage, microbatch, kept)
            else:
                self._compute_on_tape(stage, microbatch, kept)
            results += kept.given.values()
        for id, value in kept.given.items():
            self._values[microbatch, id] = value
        share = self._shares[microbatch]
        self.added += [each * tf.cast(share, each.dtype) for each in kept.losses]
        if self._training:
            if self._recompute:
                kept = _Kept(taken, draws=kept.draws)
            self._kept[number, microbatch] = kept

    def backward(self, number: int, microbatch: int, scale: Any) -> None:
        """Adds the backward task of a stage.

        Args:
            number: The stage.
            microbatch: The microbatch.
            scale: By what a loss is multiplied against underflow; 1 for most.
        """
        stage = self._pipeline.stages[number]
        kept = self._kept.pop((number, microbatch))
        with self._task(number) as results:
            if self._recompute:
                # A copy of what was taken: TensorFlow would take equal operations on the
                # same tensor for one, and keep its result.
                kept.taken = {id: carried(value) for id, value in kept.taken.items()}
                with drawing_again(kept.draws):
                    self._compute_on_tape(stage, microbatch, kept)
            passed = self._pass_on(stage, microbatch, kept, scale)
            self._add_up(number, passed[len(kept.taken) :])
            by_taken = dict(zip(kept.taken, passed, strict=False))
            by_taken = {id: dense(g) for id, g in by_taken.items() if g is not None}
            sums = [each for each in self.sums[number] if each is not None]
            results += tf.nest.flatten([*by_taken.values(), *sums], True)
        for id, gradient in by_taken.items():
            self._gradients[microbatch, id].append(gradient)

    def start_from(self, number: int, gradients: Sequence[Any]) -> None:
        """Begins the sums of a stage with gradients of what is no example's."""
        self._add_up(number, gradients)

    @contextlib.contextmanager
    def _task(self, number: int) -> Iterator[list[Any]]:
        results: list[Any] = []
        device = self._pipeline.stages[number].device
        with on(device), tf.control_dependencies(self._after[number]):
            yield results
            self._after[number] = [tf.group(*(r for r in results if r is not None))]

    def _compute(self, stage: Stage, microbatch: int, kept: _Kept) -> None:
        values = dict(kept.taken)
        share = self._shares[microbatch]
        for node in stage.nodes:
            with scaled_activities(node.operation, share):
                outputs = _tf.call_node(node, values, self._training)
            values |= {id(s): v for s, v in zip(node.outputs, outputs, strict=True)}
            kept.losses += _tf.losses_of_call(node.operation)
        kept.given = {id: values[id] for id in stage.gives}

    def _compute_on_tape(self, stage: Stage, microbatch: int, kept: _Kept) -> None:
        with tf.GradientTape() as kept.tape:
            for each in kept.taken.values():
                if _is_float(each):
                    kept.tape.watch(each)
            self._compute(stage, microbatch, kept)

    def _pass_on(
        self, stage: Stage, microbatch: int, kept: _Kept, scale: Any
    ) -> list[Any]:
        """Returns the gradients by what was taken, and by the weights."""
        targets, gradients = [], []
        for id, value in kept.given.items():
            parts = self._gradients.pop((microbatch, id), [])
            if parts and _is_float(value):
                targets.append(value)
                gradients.append(tf.add_n([tf.identity(each) for each in parts]))
        for loss in kept.losses:
            targets.append(loss)
            share = tf.cast(self._shares[microbatch], loss.dtype)
            gradients.append(
                tf.fill(tf.shape(loss), share * tf.cast(scale, loss.dtype))
            )
        taken = [
            value if _is_float(value) and id not in self._pipeline.inputs else None
            for id, value in kept.taken.items()
        ]
        present = [each for each in taken if each is not None]
        sources = present + stage.weights
        if not targets or not sources:
            return [None] * (len(taken) + len(stage.weights))
        found = iter(kept.tape.gradient(targets, sources, output_gradients=gradients))
        return [None if each is None else next(found) for each in taken] + list(found)

    def _add_up(self, number: int, gradients: Sequence[Any]) -> None:
        sums = self.sums[number]
        for at, gradient in enumerate(gradients):
            sums[at] = add_up(sums[at], gradient)


def _is_float(value: Any) -> bool:
    return value is not None and value.dtype.is_floating
