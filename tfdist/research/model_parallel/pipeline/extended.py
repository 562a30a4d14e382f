"""The `extended` of `PipelineStrategy`: where variables are created, moved and updated."""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.research.model_parallel.pipeline.devices import here, on


class PipelineExtended(_tf.OneDeviceExtended):
    """One replica, whose variables are on several devices.

    A variable is created on the device that has the fewest bytes; what is next to another
    one, such as an optimizer's slot, on the device of that. Scalars, such as the count of
    steps, stay in this process, where callbacks read them.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, devices: Sequence[str]
    ) -> None:
        self._here = here()
        super().__init__(strategy, self._here)
        # No device of its own for a step: each operation says where it belongs.
        self._device = None
        self._stage_devices = tuple(devices)
        self._bytes = dict.fromkeys(devices, 0)
        self._chosen: str | None = None

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices of the stages."""
        return self._stage_devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices that have variables."""
        return self._stage_devices

    @contextlib.contextmanager
    def creating_on(self, device: str) -> Iterator[None]:
        """Creates variables on a device, in the scope of the strategy."""
        before, self._chosen = self._chosen, device
        try:
            with self._container_strategy().scope():
                yield
        finally:
            self._chosen = before

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> tf.Variable:
        beside = kwargs.pop("colocate_with", None)
        device = self._device_for(beside, kwargs)
        with tf.device(device):
            created = next_creator(**kwargs)
        if beside is not None:
            _note_beside(created, beside)
        elif device in self._bytes and self._chosen is None:
            self._bytes[device] += created.shape.num_elements() * created.dtype.size
        return created

    def _device_for(self, beside: Any, kwargs: dict[str, Any]) -> str:
        if self._chosen is not None:
            return self._chosen
        if beside is not None:
            return str(beside.device)
        if _is_scalar(kwargs):
            return self._here
        return min(self._bytes, key=self._bytes.__getitem__)

    def _update(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        # Keras passes its own variables, TensorFlow those within.
        device = _tf.value_of(var).device if hasattr(var, "path") else var.device

        def beside(*args: Any, **kwargs: Any) -> Any:
            with on(device):
                return fn(*args, **kwargs)

        return super()._update(var, beside, args, kwargs, group)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return dataset


def _is_scalar(kwargs: dict[str, Any]) -> bool:
    shape, initial = kwargs.get("shape"), kwargs.get("initial_value")
    if shape is None and not callable(initial):
        shape = getattr(tf.convert_to_tensor(initial), "shape", None)
    return shape is not None and tf.TensorShape(shape).rank == 0


_beside: dict[int, Any] = {}


def _note_beside(variable: tf.Variable, other: tf.Variable) -> None:
    # Keyed by identity, because variables have no hash. Weak, or the old copy of a
    # variable that has moved would stay in memory.
    _beside[id(variable)] = weakref.ref(other)
    weakref.finalize(variable, _beside.pop, id(variable), None)


def _noted_beside(variable: tf.Variable) -> Any:
    """Returns the variable that this one was created next to, or None."""
    noted = _beside.get(id(variable))
    return noted() if noted is not None else None


def move(
    extended: PipelineExtended,
    placed: Iterable[tuple[keras.Variable, str]],
    others: Iterable[Any],
) -> bool:
    """Moves Keras variables to their devices, and what was created next to them.

    Values go from device to device; a variable that is in place is not touched. The others,
    an optimizer's, move if they are next to one that does. Returns whether any moved.
    """
    moved: dict[int, tf.Variable] = {}
    # Alive while others are looked for, or their identities would be given to new ones.
    kept = []
    for variable, device in placed:
        old = _tf.value_of(variable)
        if old.device != device:
            moved[id(old)] = _move_one(extended, variable, device)
            kept.append(old)
    for variable in others:
        old = _tf.value_of(variable)
        if (weight := moved.get(id(_noted_beside(old)))) is not None:
            _note_beside(_move_one(extended, variable, weight.device), weight)
    return bool(moved)


def _move_one(
    extended: PipelineExtended, variable: keras.Variable, device: str
) -> tf.Variable:
    old = _tf.value_of(variable)
    with extended.creating_on(device):
        new = tf.Variable(
            lambda: tf.identity(old),
            trainable=old.trainable,
            dtype=old.dtype,
            name=old.name.partition(":")[0],
            synchronization=old.synchronization,
            aggregation=old.aggregation,
        )
    _tf.set_value(variable, new)
    return new
