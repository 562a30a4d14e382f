"""What stages leave for each other from one step to a later one."""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfdist.pipeline.devices import cpu_beside, on
from tfdist.pipeline.parcel import Recipe, packed, unpacked
from tfdist.pipeline.pipeline import Pipeline

ByMicrobatch = dict[int, list[Any]]
"""Of tensors, by identity, the value of each microbatch."""


class Mailbox:
    """A queue in the memory of a device's task: what is put there first is taken first.

    A step takes before it puts, so that there is always something to take, and nobody
    waits.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._queue: Any = None
        self._recipe: Recipe | None = None

    def put(self, values: Any) -> None:
        """Leaves values; a first time before any are taken."""
        tensors, recipe = unpacked(values)
        if self._recipe is None:
            self._recipe = recipe
        if not tensors:
            return
        if self._queue is None:
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
        for each, spec in zip(copies, self._recipe.specs, strict=True):
            each.set_shape(spec.shape)
        return packed(copies, self._recipe)


class Link:
    """From one stage to another, in one step or, by way of the sender, in two."""

    def __init__(self, sender: str, receiver: str, lag: int) -> None:
        ends = (receiver,) if lag == 1 else (sender, receiver)
        self._boxes = [Mailbox(each) for each in ends]

    def put(self, values: Any) -> None:
        """Sends the values of a step."""
        self._boxes[0].put(values)

    def send_on(self) -> None:
        """Sends, in the next step, what waits at the sender."""
        self._boxes[1].put(self._boxes[0].take())

    def take(self) -> Any:
        """Returns what was sent first."""
        return self._boxes[-1].take()


class Links:
    """All links between the stages of a model.

    Attributes:
        wanted: Of each stage, the tensors that it needs, by identity: those that it takes,
            and at the last one all outputs of the model that others compute.
        between: Of each pair of a stage and a later one, what goes from one to the other.
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
        self._forward = {
            (sender, to): Link(devices[sender], devices[to], lag)
            for sender, to in self.between
        }
        self._back = {
            (to, sender): Link(devices[sender], devices[to], lag)
            for to, sender in self.between
        }
        last = len(stages) - 1
        self.losses = {
            stage: Link(devices[stage], devices[last], lag) for stage in range(last)
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
        """Sends what a stage has computed."""
        for pair, link in self._forward.items():
            if pair[0] == stage:
                link.put({each: values[each] for each in self.between[pair]})

    def arrived(self, stage: int) -> ByMicrobatch:
        """Returns what a stage needs of earlier ones."""
        found: ByMicrobatch = {}
        for (_, receiver), link in self._forward.items():
            if receiver == stage:
                found |= link.take()
        return found

    def put_back(self, stage: int, gradients: ByMicrobatch) -> None:
        """Sends gradients to the stages that computed what this one took."""
        for pair, link in self._back.items():
            if pair[1] == stage:
                link.put({each: gradients[each] for each in self.between[pair]})

    def came_back(self, stage: int) -> list[ByMicrobatch]:
        """Returns, of each later stage, gradients by what this one computed."""
        return [link.take() for (to, _), link in self._back.items() if to == stage]

    def send_on(self, forward: Collection[int], backward: Collection[int]) -> None:
        """Sends what waits at its senders."""
        waiting = [link for (at, _), link in self._forward.items() if at in forward]
        waiting += [link for (_, at), link in self._back.items() if at in backward]
        waiting += [link for at, link in self.losses.items() if at in forward]
        for link in waiting:
            link.send_on()
