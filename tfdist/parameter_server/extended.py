"""Creation and update of variables under a `ParameterServerStrategy`."""

import contextvars
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.keras.seeds import with_this_generator
from tfdist.parameter_server.exchange.narrow import widened_update
from tfdist.parameter_server.link import seconds_per_byte
from tfdist.parameter_server.placed_variables import PlacedVariables
from tfdist.parameter_server.seam.ps_strategy import PsStrategy
from tfdist.placement.variable_spec import VariableSpec
from tfdist.variables import narrowing
from tfdist.variables.creation import (
    being_created,
    creating,
    shard_name,
    spec_before_creation,
)
from tfdist.variables.initial_value import of_shards
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.shard_changes import sum_duplicate_rows
from tfdist.variables.shard_layout import ShardLayout
from tfdist.variables.variable import ParameterServerVariable


class ParameterServerExtended(_tf.ParameterServerStrategyV2Extended):
    """Creates variables where they are to live, and applies updates on their ps.

    Attributes:
        placed: The placement of variables.
    """

    def __init__(
        self,
        strategy: PsStrategy,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        partitioner: Callable[..., Any] | None,
        placement: Any,
    ) -> None:
        super().__init__(strategy, resolver, partitioner)
        # `tf.distribute.Strategy.__init__` sets this, but on the `extended` that it
        # made, which this object replaces afterwards.
        self._retrace_functions_for_each_device = False
        self._num_replicas = strategy.num_replicas
        self._has_several_a_worker = strategy.num_replicas > strategy.num_workers
        self._seconds_per_byte: float | None = None
        self.placed = PlacedVariables(
            placement, partitioner, strategy.num_ps, self._seconds_per_weight_byte
        )

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of a step, which has one replica.

        A step is traced once for all devices of a worker. Which of them runs it is said
        when it is sent, so the trace must not name one.
        """
        if self._has_several_a_worker:
            return ("",)
        devices: tuple[str, ...] = super().worker_devices
        return devices

    @property
    def _num_replicas_in_sync(self) -> int:
        # Replicas do not wait for each other, on whichever worker they are.
        return 1

    @property
    def seconds_per_byte(self) -> float:
        """Seconds per byte on a worker's link; 0 if the link is no bottleneck.

        Measured once, when a worker is there.
        """
        if self._seconds_per_byte is None:
            self._seconds_per_byte = seconds_per_byte(self._container_strategy())
        return self._seconds_per_byte or 0.0

    def _seconds_per_weight_byte(self) -> float:
        # A large weight travels in all of its bits, or in half of them.
        is_half = self._container_strategy().wire_dtype is not None
        return self.seconds_per_byte / (2 if is_half else 1)

    def _create_var_creator(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> Callable[..., tf.Variable]:
        def create(**kwargs: Any) -> tf.Variable:
            # TensorFlow lifts a variable that is created while a step is traced out of
            # the graph. That keeps its device but drops its colocation.
            beside = kwargs.get("colocate_with")
            with tf.device(beside.device) if beside is not None else nullcontext():
                created = next_creator(**kwargs)
            variable = ParameterServerVariable(
                created, self._num_replicas, is_weight=is_weight, beside=beside
            )
            self.placed.record(variable)
            return variable

        is_weight = kwargs.get("is_weight", False)
        return create

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> Any:
        beside = kwargs.get("colocate_with")
        if beside is not None:
            return self._create_slot(next_creator, beside, kwargs)
        if being_created().path is None:
            return super()._create_variable(next_creator, **kwargs)
        # The base class would apply the partitioner and return a `ShardedVariable`, which
        # Keras cannot use. That is right only for a user's `tf.Variable`, above.
        spec = spec_before_creation(kwargs)
        layout, initializer = self.placed.layout(spec), being_created().initializer
        if layout is None and kwargs.get("trainable", True):
            # Initialize it in one piece: a user who did not ask for shards gets the
            # values of one process.
            layout, initializer = self.placed.layout_of_large(spec), None
        if layout is None:
            creator = self._create_var_creator(next_creator)
            return self._create_whole(creator, spec, kwargs)
        return self._create_shards(next_creator, layout, spec, (), initializer, kwargs)

    def _create_slot(
        self,
        next_creator: Callable[..., tf.Variable],
        weight: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """Creates a slot beside its weight, sharded like the weight if shapes match."""
        is_split = isinstance(weight, PartitionedVariable)
        # The spec takes a trace of the initial value, which most slots can do without.
        if is_split or self.placed.is_planned:
            spec = spec_before_creation(kwargs)
            self.placed.check_slot(spec, weight)
        if is_split:
            if spec.shape == tuple(weight.shape):
                initializer = being_created().initializer
                growth = weight.growth
                if growth is not None:
                    initializer = growth.initializer_of_slot(spec.name, initializer)
                slot = self._create_shards(
                    next_creator,
                    weight.layout,
                    spec,
                    weight.shards,
                    initializer,
                    kwargs,
                )
                if growth is not None:
                    growth.add_slot(slot, initializer)
                return slot
            # A slot of another shape, such as a scalar, cannot be split like its weight.
            kwargs["colocate_with"] = weight.shards[0]
        return super()._create_variable(next_creator, **kwargs)

    def _create_shards(
        self,
        next_creator: Callable[..., tf.Variable],
        layout: ShardLayout,
        spec: VariableSpec,
        beside: tuple[ParameterServerVariable, ...],
        initializer: Any,
        kwargs: dict[str, Any],
    ) -> PartitionedVariable:
        """Creates a variable as shards, placed by the layout or next to other shards."""
        trainable = bool(kwargs.get("trainable", True)) and not beside
        creator = self._create_var_creator(next_creator, is_weight=trainable)
        initial_values = of_shards(
            kwargs["initial_value"], initializer, spec.shape, spec.dtype, layout
        )
        shards = []
        for i, (bound, value) in enumerate(
            zip(layout.partition.bounds, initial_values, strict=True)
        ):
            shard = {**kwargs, "initial_value": value.initial, "trainable": trainable}
            shard["shape"] = layout.partition.shard_shape(spec.shape, i)
            with creating(path=shard_name(spec.name, layout, i)):
                if beside:
                    shard["colocate_with"] = beside[i]
                    created = super()._create_variable(next_creator, **shard)
                else:
                    created = self._create_on(bound.ps, creator, shard)
            value.assign_pieces(created)
            shards.append(created)
        whole = PartitionedVariable(
            shards, layout, spec.name, trainable, self._num_replicas
        )
        # A plan matches weights here; `check_slot` has already checked slots.
        if not beside:
            self.placed.created(spec, whole)
        return whole

    def _create_variable_round_robin(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> tf.Variable:
        # The base class would use the ps in turn; the placement decides instead.
        return self._create_whole(next_creator, spec_before_creation(kwargs), kwargs)

    def _create_whole(
        self,
        creator: Callable[..., tf.Variable],
        spec: VariableSpec,
        kwargs: dict[str, Any],
    ) -> tf.Variable:
        variable = self._create_on(self.placed.ps_of(spec), creator, kwargs)
        self.placed.created(spec, variable)
        return variable

    def _create_on(
        self, ps: int, creator: Callable[..., tf.Variable], kwargs: dict[str, Any]
    ) -> Any:
        with _without_colocation(), tf.device(f"/job:ps/task:{ps}/device:CPU:0"):
            return creator(**kwargs)

    def _update(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        with ExitStack() as stack:
            for each in getattr(var, "shards", (var,)):
                stack.enter_context(each.in_update())
            return self._update_here(var, fn, args, kwargs, group)

    def _update_here(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        if isinstance(var, PartitionedVariable) and not var.updated_whole:
            per_argument = [var.changes.parts_or_copies(each) for each in args]
            for i, shard in enumerate(var.shards):
                # The optimizer's function still gets the partitioned variable, by which
                # it finds its slots. While it runs, partitioned variables read and
                # write their shard i only.
                with narrowing.of_shard(i):
                    self._update(
                        shard,
                        lambda _, *rest: fn(var, *rest, **kwargs),
                        tuple(parts[i] for parts in per_argument),
                        {},
                        group,
                    )
            return None
        # A `NarrowComputation` has sent this gradient in half of its bits.
        if args and getattr(args[0], "dtype", var.dtype) == tf.bfloat16 != var.dtype:
            fn = widened_update(fn, var.dtype)
        if isinstance(var, PartitionedVariable):
            if args and isinstance(args[0], tf.IndexedSlices):
                args = (tf.convert_to_tensor(args[0]), *args[1:])
            return super()._update(
                var.shards[0],
                lambda _, *rest: fn(var, *rest, **kwargs),
                args,
                {},
                group,
            )
        if args and isinstance(args[0], tf.IndexedSlices):
            summed = sum_duplicate_rows(args[0])
            if var.updates_rows:
                args = (summed.values, *args[1:])
                with narrowing.of_rows(var, summed.indices):
                    return super()._update(var, fn, args, kwargs, group)
            args = (summed, *args[1:])
        return super()._update(var, fn, args, kwargs, group)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        fn = with_this_generator(fn)
        # TensorFlow calls it in a thread of its own.
        surroundings = contextvars.copy_context()
        call = functools.partial(surroundings.run, fn)
        return super()._call_for_each_replica(call, args, kwargs)

    # A step has one replica, and nobody to meet. So it needs no merge call, which could
    # not be within a condition, a loop or a `tf.function`.

    def _use_merge_call(self) -> bool:
        # An optimizer calls this before it updates anything, so this is where one that
        # is applied outside a step can be noticed.
        if tf.distribute.in_cross_replica_context():
            raise RuntimeError(
                "an optimizer was applied in the scope of the strategy but outside of "
                "strategy.run. Put the step into a function, and schedule a function "
                "that calls strategy.run(step, args=(batch,))"
            )
        return False

    def _replica_ctx_all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Any, options: Any = None
    ) -> Any:
        return value

    def _replica_ctx_update(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        return self._update(var, fn, args, kwargs, group)

    def _assert_being_scheduled_by_cluster_coordinator(self) -> None:
        # The base class warns about `run` outside a scheduled function. tfdist traces a
        # step before it schedules it, so warn only about a call that would really run
        # on the chief.
        if tf.executing_eagerly():
            super()._assert_being_scheduled_by_cluster_coordinator()


def _without_colocation() -> AbstractContextManager[Any]:
    """Ignores colocations of the surrounding code, which could contradict a device."""
    # `tf.compat.v1.colocate_with` does the same, and warns that it is deprecated.
    if tf.executing_eagerly():
        return nullcontext()
    graph = tf.compat.v1.get_default_graph()
    return graph.colocate_with(None, ignore_existing=True)
