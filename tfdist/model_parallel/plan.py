"""Which device computes each layer of a model, as plain data. Imports no TensorFlow.

`tfdist.place_layers` makes a plan.
"""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist._whole_file import write_whole
from tfdist.model_parallel.devices import Device, Links
from tfdist.model_parallel.graph import LayerGraph
from tfdist.model_parallel.step import Run, simulate
from tfdist.model_parallel.work import Work
from tfdist.splitting.split import Split

PLACED, EQUAL_STAGES, BY_HAND = "placed", "stages of equal cost", "by hand"


@dataclass(frozen=True)
class LayerTask:
    """One computation of a simulated step.

    Attributes:
        device: The name of the device.
        node: The node, a call of a layer.
        is_backward: Whether it is the backward computation.
        microbatch: Of which microbatch, counted from 0.
        start: When it begins, in seconds.
        end: When it ends.
        is_critical: Whether it is on the critical path.
    """

    device: str
    node: str
    is_backward: bool
    microbatch: int
    start: float
    end: float
    is_critical: bool


@dataclass(frozen=True)
class LayerMessage:
    """One tensor that a simulated step sends to another device.

    Attributes:
        source: The device that sends it.
        target: The device that receives it.
        node: The node that computed it, or whose output's gradient it is.
        is_backward: Whether it is the gradient.
        microbatch: Of which microbatch, counted from 0.
        size: Bytes.
        start: When its first byte leaves, in seconds.
        arrival: When it is there.
        is_critical: Whether it is on the critical path.
    """

    source: str
    target: str
    node: str
    is_backward: bool
    microbatch: int
    size: int
    start: float
    arrival: float
    is_critical: bool


@dataclass(frozen=True)
class LayerPlan:
    """Which device computes each layer of a model, and what a step would take.

    Attributes:
        graph: The layers and their costs.
        devices: The devices.
        links: What connects them.
        placed: The name of each layer's device, by the name of the layer.
        microbatches: How many parts of a batch follow each other.
        compared: Predicted seconds of other placements by their names; None for one
            that the devices have no memory for.
        split: The layers that are split, by their names: `tfdist.split_layers` splits a
            model so. Their parts are layers of the graph.
    """

    graph: LayerGraph
    devices: tuple[Device, ...]
    links: Links
    placed: Mapping[str, str]
    microbatches: int = 1
    compared: Mapping[str, float | None] = field(default_factory=dict)
    split: Mapping[str, Split] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step."""
        return self._run.seconds

    @property
    def bound(self) -> float:
        """The seconds that no placement can do with less than, whatever the links.

        The critical path on the fastest device, all work evenly on all devices, or the
        largest layer: whichever is most.
        """
        return self._work.bound

    @functools.cached_property
    def bytes_per_device(self) -> dict[str, int]:
        """Bytes of weights, slots and activations on each device."""
        used = self._work.used(self._assignment)
        return {d.name: each for d, each in zip(self.devices, used, strict=True)}

    @functools.cached_property
    def busy(self) -> dict[str, float]:
        """The share of the step in which each device computes."""
        seconds = dict.fromkeys((device.name for device in self.devices), 0.0)
        for task in self.tasks:
            seconds[task.device] += task.end - task.start
        return {name: each / (self.seconds or 1.0) for name, each in seconds.items()}

    @functools.cached_property
    def tasks(self) -> tuple[LayerTask, ...]:
        """What a simulated step computes, by the time of its start."""
        run, n, order = self._run, self._work.num_nodes, self.graph.order
        critical = set(run.critical_path())
        found = []
        for number, (start, end) in enumerate(zip(run.start, run.end, strict=True)):
            part, at = divmod(number, 2 * n)
            node = at % n
            device = self.devices[run.device[node]].name
            is_critical = number in critical
            found.append(
                LayerTask(device, order[node], at >= n, part, start, end, is_critical)
            )
        return tuple(sorted(found, key=lambda each: (each.start, each.end)))

    @functools.cached_property
    def messages(self) -> tuple[LayerMessage, ...]:
        """What a simulated step sends, in the order in which it was computed."""
        critical, found = set(self._run.critical_path()), []
        for number, each in enumerate(self._run.messages):
            tensor = self._work.tensors[each.tensor]
            found.append(
                LayerMessage(
                    self.devices[each.source].name,
                    self.devices[each.target].name,
                    self.graph.order[tensor.source],
                    each.is_gradient,
                    each.microbatch,
                    tensor.size,
                    each.start,
                    each.arrival,
                    -2 - number in critical,
                )
            )
        return tuple(found)

    @property
    def critical_path(self) -> tuple[LayerTask | LayerMessage, ...]:
        """The tasks and messages that each waited for the one before it, to the end."""
        everything: tuple[LayerTask | LayerMessage, ...] = (*self.tasks, *self.messages)
        found = [each for each in everything if each.is_critical]
        return tuple(
            sorted(found, key=lambda each: (each.start, isinstance(each, LayerTask)))
        )

    @property
    def bytes_sent(self) -> int:
        """The bytes that a step sends from one device to another."""
        return sum(each.size for each in self.messages)

    @property
    def stages(self) -> dict[str, tuple[str, ...]]:
        """The layers on each device, in the order of the graph."""
        found: dict[str, list[str]] = {device.name: [] for device in self.devices}
        for unit in self.graph.units:
            found[self.placed[unit]].append(unit)
        return {device: tuple(units) for device, units in found.items()}

    def __str__(self) -> str:
        # Here and below: `view` and `file` import this module.
        from tfdist.model_parallel import view

        return view.summary(self)

    def table(self) -> str:
        """Returns a table of every layer, its costs and its device."""
        from tfdist.model_parallel import view

        return view.table(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the timeline of a step as a PNG file. Needs matplotlib.

        A row per device and per link that is used; the critical path has a black edge.

        Raises:
            ValueError: If the file's name does not end with `.png`.
            ImportError: If matplotlib is not installed.
        """
        from tfdist.model_parallel import view

        view.plot(self, path)

    def to_json(self) -> str:
        """Returns the plan as JSON, one layer per line."""
        from tfdist.model_parallel import file

        return file.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "LayerPlan":
        """Returns the plan that `to_json` wrote.

        Raises:
            PlanFileError: If the text is no such plan.
        """
        from tfdist.model_parallel import file

        return file.from_json(text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file atomically."""
        write_whole(path, self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LayerPlan":
        """Reads a plan from a file.

        Raises:
            PlanFileError: If the file is no such plan. The error names the file.
            OSError: If the file cannot be read.
        """
        from tfdist.model_parallel import file

        return file.load(path)

    @functools.cached_property
    def _work(self) -> Work:
        return Work(self.graph, self.devices, self.links, self.microbatches)

    @functools.cached_property
    def _assignment(self) -> tuple[int, ...]:
        numbers = {device.name: at for at, device in enumerate(self.devices)}
        return tuple(numbers[self.placed[unit]] for unit in self.graph.units)

    @functools.cached_property
    def _run(self) -> Run:
        return simulate(self._work, self._assignment)
