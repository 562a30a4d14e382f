"""Values that stages leave for each other for a later step, and their form."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.research.model_parallel.pipeline.devices import cpu_beside, on
from tfdist.research.model_parallel.pipeline.pipeline import Pipeline

_as_written = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Recipe:
    """Instructions to rebuild values from tensors.

    Attributes:
        structure: The structure of the values, for `tf.nest`.
        kinds: For each value its type, None for no value, or "tensor".
        masked: Whether each value has a mask, which is the tensor after it.
    """

    structure: Any
    kinds: tuple[Any, ...]
    masked: tuple[bool, ...]
    specs: tuple[tf.TensorSpec, ...]


def unpacked(values: Nest) -> tuple[list[tf.Tensor], Recipe]:
    """Returns the tensors of some values, each a tensor, `IndexedSlices` or None."""
    tensors: list[tf.Tensor] = []
    kinds: list[Any] = []
    masks: list[Any] = []
    for each in tf.nest.flatten(values):
        mask = None if each is None else _tf.mask_of(each)
        masks.append(mask)
        if isinstance(each, tf.IndexedSlices):
            kinds.append(tf.type_spec_from_value(each))
        else:
            kinds.append(None if each is None else "tensor")
        if each is not None:
            tensors += tf.nest.flatten(each, expand_composites=True)
        if mask is not None:
            tensors.append(mask)
    structure = tf.nest.map_structure(lambda _: None, values)
    masked = tuple(mask is not None for mask in masks)
    specs = tuple(tf.TensorSpec(each.shape, each.dtype) for each in tensors)
    return tensors, Recipe(structure, tuple(kinds), masked, specs)


def packed(tensors: Sequence[tf.Tensor], recipe: Recipe) -> Any:
    """Returns the values that were unpacked."""
    rest = iter(tensors)
    values: list[Any] = []
    for kind, has_mask in zip(recipe.kinds, recipe.masked, strict=True):
        if kind is None:
            values.append(None)
        elif isinstance(kind, tf.TypeSpec):
            count = len(tf.nest.flatten(kind, expand_composites=True))
            parts = [next(rest) for _ in range(count)]
            values.append(tf.nest.pack_sequence_as(kind, parts, True))
        else:
            # A copy, for its mask is an attribute.
            values.append(tf.identity(next(rest)) if has_mask else next(rest))
        if has_mask:
            _tf.set_mask(values[-1], next(rest))
    return tf.nest.pack_sequence_as(recipe.structure, values)


class StageFunction:
    """Computes values from values on the device of a stage, traced at its first call.

    A function of its own, so that many steps share one trace. It takes and returns a
    structure of tensors, with their masks, and of None.
    """

    def __init__(self, device: str, compute: Callable[[Any], Any]) -> None:
        self._device, self._compute = device, compute
        self._traced: Any = None
        self._results: Recipe | None = None

    def __call__(self, values: Nest) -> Nest:
        """Adds the computation to the function that is being traced."""
        tensors, recipe = unpacked(values)
        if self._traced is None:

            @_as_written
            def on_tensors(*tensors: tf.Tensor) -> list[tf.Tensor]:
                results = self._compute(packed(tensors, recipe))
                given, self._results = unpacked(results)
                return given

            self._traced = _tf.function(on_tensors, recipe.specs)
        # Later operations, such as the update, are placed where their inputs are.
        with on(self._device):
            copies = [tf.identity(each) for each in self._traced(*tensors)]
        assert self._results is not None
        return packed(copies, self._results)


ByMicrobatch = dict[int, list[Nest]]
"""The values of each microbatch, by the identity of a symbolic tensor."""


class Mailbox:
    """A queue in the memory of a device's task: what is put there first is taken first.

    A step takes before it puts, so that there is always something to take, and nobody
    waits.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._queue: Any = None
        self._recipe: Recipe | None = None

    def put(self, values: Nest) -> None:
        """Leaves values; a first time before any are taken."""
        tensors, recipe = unpacked(values)
        if self._recipe is None:
            self._recipe = recipe
        if not tensors:
            return
        if self._queue is None:
            # Outside of the step that is traced, so that all traces share this queue.
            with tf.init_scope(), tf.device(cpu_beside(self._device)):
                self._queue = tf.queue.FIFOQueue(-1, [each.dtype for each in tensors])
        with on(self._device):
            self._queue.enqueue(tensors)

    def take(self) -> Any:
        """Returns the values that have been there longest."""
        assert self._recipe is not None, "nothing was ever put"
        if self._queue is None:
            return packed([], self._recipe)
        found = self._queue.dequeue()
        tensors = found if isinstance(found, list | tuple) else [found]
        with on(self._device):
            copies = [tf.identity(each) for each in tensors]
        # A queue forgets shapes.
        for each, spec in zip(copies, self._recipe.specs, strict=True):
            each.set_shape(spec.shape)
        return packed(copies, self._recipe)


class StageLink:
    """From one stage to another, in one step or, by way of the sender, in two."""

    def __init__(self, sender: str, receiver: str, lag: int) -> None:
        ends = (receiver,) if lag == 1 else (sender, receiver)
        self._boxes = [Mailbox(each) for each in ends]

    def put(self, values: Nest) -> None:
        """Sends the values of a step."""
        self._boxes[0].put(values)

    def send_on(self) -> None:
        """Sends, in the next step, the values that wait at the sender."""
        self._boxes[1].put(self._boxes[0].take())

    def take(self) -> Any:
        """Returns the values that were sent first."""
        return self._boxes[-1].take()


class StageLinks:
    """All links between the stages of a model.

    Attributes:
        wanted: The tensors that each stage needs, by identity: those that it takes,
            and at the last one all outputs of the model that others compute.
        between: The tensors from a stage to a later one, for each such pair.
        losses: From each stage but the last, what its layers passed to `add_loss`.
        batches: For each stage, what it needs of the batches that it computes next.
        kept: For each stage, what it took of a batch, until the gradient of that comes.
    """

    def __init__(self, pipeline: Pipeline, lag: int) -> None:
        stages = pipeline.stages
        made_by = {id: at for at, stage in enumerate(stages) for id in stage.gives}
        self.wanted = [list(stage.takes) for stage in stages]
        here = {*stages[-1].gives, *self.wanted[-1]}
        self.wanted[-1] += [e for e in dict.fromkeys(pipeline.outputs) if e not in here]
        self.between: dict[tuple[int, int], list[int]] = {}
        for receiver, ids in enumerate(self.wanted):
            for each in ids:
                if each in made_by:
                    pair = made_by[each], receiver
                    self.between.setdefault(pair, []).append(each)
        devices = [stage.device for stage in stages]
        ways = [*self.between, *((to, sender) for sender, to in self.between)]
        self._ways = {(a, b): StageLink(devices[a], devices[b], lag) for a, b in ways}
        last = len(stages) - 1
        self.losses = {
            stage: StageLink(devices[stage], devices[last], lag)
            for stage in range(last)
        }
        self.batches = [Mailbox(each) for each in devices]
        self.kept = [Mailbox(each) for each in devices]

    def inputs_of(self, stage: int) -> list[int]:
        """Returns the inputs of the model that a stage takes."""
        made = {
            id for (_, to), ids in self.between.items() for id in ids if to == stage
        }
        return [each for each in self.wanted[stage] if each not in made]

    def put(self, stage: int, values: ByMicrobatch) -> None:
        """Sends the results of a stage."""
        for (sender, to), ids in self.between.items():
            if sender == stage:
                self._ways[sender, to].put({each: values[each] for each in ids})

    def arrived(self, stage: int) -> ByMicrobatch:
        """Returns the values that a stage needs from earlier ones."""
        found: ByMicrobatch = {}
        for sender, to in self.between:
            if to == stage:
                found |= self._ways[sender, to].take()
        return found

    def put_back(self, stage: int, gradients: ByMicrobatch) -> None:
        """Sends gradients back to the stages whose results this one took."""
        for (sender, to), ids in self.between.items():
            if to == stage:
                self._ways[to, sender].put({each: gradients[each] for each in ids})

    def came_back(self, stage: int) -> list[ByMicrobatch]:
        """Returns, of each later stage, gradients by what this one computed."""
        pairs = [(sender, to) for sender, to in self.between if sender == stage]
        return [self._ways[to, sender].take() for sender, to in pairs]

    def send_on(self, forward: Collection[int], backward: Collection[int]) -> None:
        """Sends the values that wait at their senders."""
        for (sender, to), link in self._ways.items():
            if sender in (forward if sender < to else backward):
                link.send_on()
        for sender, link in self.losses.items():
            if sender in forward:
                link.send_on()
