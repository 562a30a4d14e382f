"""What stages leave for each other from one step to a later one."""

from collections.abc import Iterable, Sequence
from typing import Any

from tfdist.pipeline.mailbox import Mailbox
from tfdist.pipeline.pipeline import Pipeline


class Link:
    """From one stage to another, in one step or, by way of the sender, in two.

    Args:
        sender: The device of the stage that sends.
        receiver: That of the stage that receives.
        lag: The steps on the way: 1 or 2.
    """

    def __init__(self, sender: str, receiver: str, lag: int) -> None:
        ends = (receiver,) if lag == 1 else (sender, receiver)
        self._boxes = [Mailbox(each) for each in ends]

    def put(self, values: Sequence[Any]) -> None:
        """Sends the values of a step."""
        self._boxes[0].put(values)

    def send_on(self) -> None:
        """Sends, in the next step, what waits at the sender."""
        self._boxes[1].put(self._boxes[0].take())

    def take(self) -> list[Any]:
        """Returns what was sent first."""
        return self._boxes[-1].take()


class Links:
    """All links between the stages of a model.

    Args:
        pipeline: The model in stages.
        lag: The steps from one stage to the next.

    Attributes:
        wanted: Of each stage, the tensors that it needs, by identity: those that it takes,
            and at the last one all outputs of the model that others compute.
        between: Of each pair of a stage and a later one, what goes from one to the other.
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
        self._losses = {
            stage: Link(devices[stage], devices[last], lag) for stage in range(last)
        }
        self._batches = [Mailbox(each) for each in devices]
        self._kept = [Mailbox(each) for each in devices]

    def inputs_of(self, stage: int) -> list[int]:
        """Returns the inputs of the model that a stage takes."""
        made = {
            id for (_, to), ids in self.between.items() for id in ids if to == stage
        }
        return [each for each in self.wanted[stage] if each not in made]

    def give(self, stage: int, values: Sequence[Any]) -> None:
        """Leaves what a stage needs of a batch."""
        self._batches[stage].put(values)

    def given(self, stage: int) -> list[Any]:
        """Returns what a stage needs of the batch that it computes next."""
        return self._batches[stage].take()

    def keep(self, stage: int, values: Sequence[Any]) -> None:
        """Keeps what a stage took, until the gradient of that batch comes."""
        self._kept[stage].put(values)

    def kept(self, stage: int) -> list[Any]:
        """Returns what a stage took of the batch whose gradient has come."""
        return self._kept[stage].take()

    def put(self, stage: int, values: dict[int, list[Any]]) -> None:
        """Sends what a stage has computed, by identity and microbatch."""
        for (sender, _), ids, link in self._of(self._forward):
            if sender == stage:
                link.put(_in_one(ids, values))

    def arrived(self, stage: int) -> dict[int, list[Any]]:
        """Returns what a stage needs of earlier ones."""
        found: dict[int, list[Any]] = {}
        for (_, receiver), ids, link in self._of(self._forward):
            if receiver == stage:
                found |= _by_id(ids, link.take())
        return found

    def put_back(self, stage: int, gradients: dict[int, list[Any]]) -> None:
        """Sends gradients to the stages that computed what this one took."""
        for (_, sender), ids, link in self._of(self._back):
            if sender == stage:
                link.put(_in_one(ids, gradients))

    def came_back(self, stage: int) -> list[tuple[list[int], list[Any]]]:
        """Returns, of each later stage, identities and gradients, by microbatch."""
        return [
            (ids, link.take())
            for (receiver, _), ids, link in self._of(self._back)
            if receiver == stage
        ]

    def put_losses(self, stage: int, losses: Sequence[Any]) -> None:
        """Sends what the layers of a stage passed to `add_loss`."""
        self._losses[stage].put(losses)

    def losses(self) -> list[Any]:
        """Returns the losses of all stages before the last one, for its batch."""
        return [each for link in self._losses.values() for each in link.take()]

    def send_on(self, forward: Iterable[int], backward: Iterable[int]) -> None:
        """Sends what waits at its senders."""
        for (sender, _), _, link in self._of(self._forward):
            if sender in forward:
                link.send_on()
        for (_, sender), _, link in self._of(self._back):
            if sender in backward:
                link.send_on()
        for sender, link in self._losses.items():
            if sender in forward:
                link.send_on()

    def _of(self, links: dict[tuple[int, int], Link]) -> Iterable[Any]:
        return [(pair, self.between[pair], link) for pair, link in links.items()]


def _in_one(ids: Sequence[int], values: dict[int, list[Any]]) -> list[Any]:
    parts = [values[each] for each in ids]
    return [
        each for of_microbatch in zip(*parts, strict=True) for each in of_microbatch
    ]


def _by_id(ids: Sequence[int], values: Sequence[Any]) -> dict[int, list[Any]]:
    return {each: list(values[at :: len(ids)]) for at, each in enumerate(ids)}
