"""Plans of the device for each layer of a model, made by `tfdist.research.place_layers`."""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from tf_config.whole_file import write_whole
from tfdist._support.views import bar, render, table_of
from tfdist.planning.file import read
from tfdist.research.model_parallel import file, timeline
from tfdist.research.model_parallel.devices import Device, Links
from tfdist.research.model_parallel.graph import LayerGraph
from tfdist.research.model_parallel.splitting.split import Split
from tfdist.research.model_parallel.step import SimulatedStep, simulate
from tfdist.research.model_parallel.timeline import LayerMessage, LayerTask
from tfdist.research.model_parallel.work import Work

PLACED, EQUAL_STAGES, BY_HAND = "placed", "stages of equal cost", "by hand"


@dataclass(frozen=True)
class LayerPlan:
    """The device of each layer of a model, and the predicted time of a step.

    Attributes:
        graph: The layers and their costs.
        devices: The devices.
        links: The links between the devices.
        placed: The name of each layer's device, by the name of the layer.
        microbatches: How many parts of a batch follow each other.
        compared: Predicted seconds of other placements by their names; None for one
            that the devices have no memory for.
        split: The layers that are split, by their names: `tfdist.research.split_layers` splits a
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
        """The seconds that no placement can do with less than, regardless of the links.

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
        """The tasks of a simulated step, by the time of their start."""
        return timeline.tasks_of(self._work, self._run)

    @functools.cached_property
    def messages(self) -> tuple[LayerMessage, ...]:
        """The messages of a simulated step, in the order of their computation."""
        return timeline.messages_of(self._work, self._run)

    @property
    def critical_path(self) -> tuple[LayerTask | LayerMessage, ...]:
        """The tasks and messages that each waited for the one before it, to the end."""
        return timeline.critical(self.tasks, self.messages)

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
        rows = {PLACED: self.seconds, **self.compared, "lower bound": self.bound}
        longest = max(seconds or 0.0 for seconds in rows.values())
        times = table_of("a step", ">ms", "")
        for name, seconds in rows.items():
            if seconds is None:
                times.add_row(name, "", "does not fit")
            else:
                times.add_row(name, f"{1e3 * seconds:,.3f}", bar(seconds, longest))
        used = table_of("device", ">speed", ">layers", ">busy", ">MB", ">of MB")
        for device in self.devices:
            used.add_row(
                device.name,
                f"{device.speed:g}",
                str(len(self.stages[device.name])),
                f"{self.busy[device.name]:.0%}",
                f"{self.bytes_per_device[device.name] / 1e6:,.1f}",
                "" if device.memory is None else f"{device.memory / 1e6:,.1f}",
            )
        return f"{render(times)}{render(used)}{self._sent()}\n"

    def _sent(self) -> str:
        computed = sum(
            each.end - each.start
            for each in self.critical_path
            if isinstance(each, LayerTask)
        )
        share = computed / self.seconds if self.seconds else 1.0
        return (
            f"{len(self.messages):,} messages of {self.bytes_sent / 1e6:,.2f} MB in all; "
            f"{share:.0%} of the critical path is computation"
        )

    def table(self) -> str:
        """Returns a table of every call of a layer, its costs and its device."""
        found = table_of(
            *("layer", "device", ">forward ms", ">backward ms", ">MB"),
            "on the critical path",
        )
        critical = {each.node for each in self.tasks if each.is_critical}
        nodes = {node.name: node for node in self.graph.nodes}
        for name in self.graph.order:
            node = nodes[name]
            found.add_row(
                name,
                self.placed[node.unit],
                f"{1e3 * node.forward:,.3f}",
                f"{1e3 * node.backward:,.3f}",
                f"{(node.weights + node.activations) / 1e6:,.2f}",
                "yes" if name in critical else "",
            )
        split = [
            f"{name} is split by {each.by} into {each.parts} parts.\n"
            for name, each in self.split.items()
        ]
        return render(found) + "".join(split)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the timeline of a step as a PNG file. Needs matplotlib.

        A row per device and per link that is used; a line follows the critical path.

        Raises:
            ValueError: If the file's name does not end with `.png`.
            ImportError: If matplotlib is not installed.
        """
        others = [f"{name}: {1e3 * s:,.1f}" for name, s in self.compared.items() if s]
        title = f"{1e3 * self.seconds:,.1f} ms a step ({', '.join(others)})"
        names = [device.name for device in self.devices]
        timeline.plot(path, title, names, self.tasks, self.messages)

    def to_json(self) -> str:
        """Returns the plan as JSON, one layer per line."""
        return file.to_json(self._work, self.placed, self.compared, self.split)

    @classmethod
    def from_json(cls, text: str) -> "LayerPlan":
        """Returns the plan that `to_json` wrote.

        Raises:
            PlanFileError: If the text is no such plan.
        """
        return cls(**file.from_json(text))

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
        return read(path, cls.from_json)

    @functools.cached_property
    def _work(self) -> Work:
        return Work(self.graph, self.devices, self.links, self.microbatches)

    @functools.cached_property
    def _assignment(self) -> tuple[int, ...]:
        numbers = {device.name: at for at, device in enumerate(self.devices)}
        return tuple(numbers[self.placed[unit]] for unit in self.graph.units)

    @functools.cached_property
    def _run(self) -> SimulatedStep:
        return simulate(self._work, self._assignment)
