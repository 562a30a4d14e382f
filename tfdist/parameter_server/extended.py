"""How a `ParameterServerStrategy` creates and updates variables."""

import contextvars
import functools
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist.keras.seeds import with_this_generator
from tfdist.parameter_server import replicas
from tfdist.parameter_server.link import seconds_per_byte
from tfdist.placement.greedy import BestFit
from tfdist.placement.large_weights import partitioner_for
from tfdist.placement.partition import PartitionError
from tfdist.placement.partitioners import partition_of
from tfdist.placement.placement import (
    PartitioningPlacement,
    Placement,
    VariableSpec,
    ps_for,
)
from tfdist.placement.report import PlacedVariable
from tfdist.variables import narrowing
from tfdist.variables.creation import (
    requested,
    shard_name,
    spec_before_creation,
    spec_of,
    variable_initializer,
    variable_path,
)
from tfdist.variables.initial_value import of_shards
from tfdist.variables.layout import DIV, Layout, layout_of
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.variable import ParameterServerVariable


class ParameterServerExtended(_tf.ParameterServerStrategyV2Extended):
    """Places and splits variables, and applies updates on the ps that hold them."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        cluster: tf_config.Cluster,
        partitioner: Callable[..., Any] | None,
        placement: Placement | None,
    ) -> None:
        super().__init__(strategy, resolver, partitioner)
        # `tf.distribute.Strategy.__init__` sets this, but on the `extended` that it
        # made, which this object replaces afterwards.
        self._retrace_functions_for_each_device = False
        # Who says where variables live is asked about each as it is.
        self._splits_large_weights = placement is None and partitioner is None
        self._placement = BestFit() if placement is None else placement
        self._partitioner = partitioner
        self.num_workers = len(cluster.worker)
        self.replicas = replicas.replicas_of(
            self.num_workers,
            [each.name for each in tf.config.list_logical_devices()],
            replicas.KIND,
        )
        self.num_ps = len(cluster.ps)
        self._seconds_per_byte: float | None = None
        # Weak references: the report must not keep the variables of a deleted model
        # alive on the ps.
        self._placed: list[tuple[weakref.ref[Any], PlacedVariable]] = []

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of a step, which has one replica.

        A step is traced once for all devices of a worker. Which of them runs it is said
        when it is sent, so the trace must not name one.
        """
        if len(self.replicas) > self.num_workers:
            return ("",)
        devices: tuple[str, ...] = super().worker_devices
        return devices

    @property
    def _num_replicas_in_sync(self) -> int:
        # Replicas do not wait for each other, on whichever worker they are.
        return 1

    @property
    def seconds_per_byte(self) -> float:
        """How long the link of a worker takes for a byte; 0 if it is not what binds.

        Measured once, when a worker is there.
        """
        if self._seconds_per_byte is None:
            self._seconds_per_byte = seconds_per_byte(self._container_strategy())
        return self._seconds_per_byte or 0.0

    def placed_variables(self) -> tuple[PlacedVariable, ...]:
        """Returns the variables that still exist, in creation order."""
        return tuple(
            placed for variable, placed in self._placed if variable() is not None
        )

    def existing_variables(self) -> list[tuple[ParameterServerVariable, str]]:
        """Returns the variables that still exist, with their names."""
        return [
            (variable, placed.spec.name)
            for reference, placed in self._placed
            if (variable := reference()) is not None
        ]

    def of_handles(
        self, handles: Iterable[Any]
    ) -> list[tuple[ParameterServerVariable, str]]:
        """Returns the variables of these handles, with their names.

        What is not one of the strategy's, such as a lookup table, is left out.
        """
        known = {
            id(variable.handle): (variable, name)
            for variable, name in self.existing_variables()
        }
        return [known[id(each)] for each in handles if id(each) in known]

    def check_placement_is_complete(self, weights: Iterable[Any]) -> None:
        """Checks, before the first step, that the model matches the placement plan."""
        if isinstance(self._placement, PartitioningPlacement):
            self._placement.check_complete(weights)

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
                created, len(self.replicas), is_weight=is_weight, beside=beside
            )
            self._record(variable)
            return variable

        is_weight = kwargs.get("is_weight", False)
        return create

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> Any:
        beside = kwargs.get("colocate_with")
        placement = self._placement
        if beside is not None and isinstance(placement, PartitioningPlacement):
            placement.check_slot(spec_before_creation(kwargs), beside)
        if isinstance(beside, PartitionedVariable):
            spec = spec_before_creation(kwargs)
            if spec.shape == tuple(beside.shape):
                return self._create_shards(
                    next_creator,
                    beside.layout,
                    spec,
                    beside.shards,
                    variable_initializer.get(),
                    kwargs,
                )
            # A slot of another shape, such as a scalar, cannot be split like its
            # weight.
            kwargs["colocate_with"] = beside.shards[0]
        elif beside is None and variable_path.get() is not None:
            spec = spec_before_creation(kwargs)
            layout, initializer = self._layout(spec), variable_initializer.get()
            if layout is None and kwargs.get("trainable", True):
                # It is drawn as a whole: who has not asked for shards has the values of
                # one process.
                layout, initializer = self._layout_of_large(spec), None
            if layout is not None:
                return self._create_shards(
                    next_creator, layout, spec, (), initializer, kwargs
                )
            # The base class would apply the partitioner and return a `ShardedVariable`,
            # which Keras cannot use. That is right only for a user's `tf.Variable`.
            creator = self._create_var_creator(next_creator)
            return self._create_variable_round_robin(creator, **kwargs)
        return super()._create_variable(next_creator, **kwargs)

    def _layout(self, spec: VariableSpec) -> Layout | None:
        """Returns how to split a Keras variable, or None to leave it unsplit."""
        request = requested()
        if isinstance(self._placement, PartitioningPlacement):
            partition = self._placement.partition(spec, self.num_ps)
        else:
            partitioner = request.partitioner or self._partitioner
            if partitioner is None:
                return None
            partition = partition_of(partitioner, spec, self.num_ps, self._placement)
        if partition is None or len(partition.bounds) == 1:
            return None
        partition.check(spec, self.num_ps)
        if request.rows_only and partition.axis:
            raise PartitionError(
                f"{spec.name} of shape {spec.shape} can be split by rows only, because "
                "it is looked up by row or uses the 'mod' layout; the partitioner "
                f"splits axis {partition.axis}. Use a partitioner that splits axis 0"
            )
        return layout_of(partition, request.partition_strategy, spec.name)

    def _layout_of_large(self, spec: VariableSpec) -> Layout | None:
        """Returns how to split a weight for which nobody has said anything, or None."""
        if not self._splits_large_weights or requested().partitioner is not None:
            return None
        partitioner = partitioner_for(spec, self.num_ps)
        # Where processors bind, shards cost more than they save.
        if partitioner is None or not self.seconds_per_byte:
            return None
        partition = partition_of(partitioner, spec, self.num_ps, self._placement)
        return None if partition is None else layout_of(partition, DIV, spec.name)

    def _create_shards(
        self,
        next_creator: Callable[..., tf.Variable],
        layout: Layout,
        spec: VariableSpec,
        beside: tuple[ParameterServerVariable, ...],
        initializer: Any,
        kwargs: dict[str, Any],
    ) -> PartitionedVariable:
        """Creates a variable as shards, placed by the layout or beside other shards."""
        trainable = bool(kwargs.get("trainable", True)) and not beside
        creator = self._create_var_creator(next_creator, is_weight=trainable)
        initial_values = of_shards(
            kwargs["initial_value"],
            initializer,
            spec.shape,
            spec.dtype,
            layout,
        )
        shards = []
        for i, (bound, value) in enumerate(
            zip(layout.partition.bounds, initial_values, strict=True)
        ):
            shard = {**kwargs, "initial_value": value.initial, "trainable": trainable}
            shard["shape"] = layout.partition.shard_shape(spec.shape, i)
            token = variable_path.set(shard_name(spec.name, layout, i))
            try:
                if beside:
                    shard["colocate_with"] = beside[i]
                    created = super()._create_variable(next_creator, **shard)
                else:
                    created = self._create_on(bound.ps, creator, shard)
            finally:
                variable_path.reset(token)
            value.assign_pieces(created)
            shards.append(created)
        whole = PartitionedVariable(
            shards, layout, spec.name, trainable, len(self.replicas)
        )
        # A plan matches weights here; `check_slot` has already checked slots.
        if not beside:
            self._notify_placement(spec, whole)
        return whole

    def _notify_placement(self, spec: VariableSpec, variable: Any) -> None:
        if isinstance(self._placement, PartitioningPlacement):
            self._placement.created(spec, variable)

    def _update(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        if isinstance(var, PartitionedVariable) and not var.updated_whole:
            per_argument = [self._per_shard(var, each) for each in args]
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
        if args and getattr(args[0], "dtype", var.dtype) == tf.bfloat16 != var.dtype:
            fn = _widened(fn, var.dtype)
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
            summed = _sum_duplicate_rows(args[0])
            if var.updates_rows:
                args = (summed.values, *args[1:])
                with narrowing.of_rows(var, summed.indices):
                    return super()._update(var, fn, args, kwargs, group)
            args = (summed, *args[1:])
        return super()._update(var, fn, args, kwargs, group)

    def _per_shard(self, var: PartitionedVariable, argument: Any) -> list[Any]:
        """Splits a gradient into one part per shard; repeats any other argument."""
        if isinstance(argument, tf.IndexedSlices):
            return var.parts_of(argument)
        # Of a gradient, TensorFlow may not know the shape, nor even the rank.
        if tf.is_tensor(argument) and argument.shape.is_compatible_with(var.shape):
            if isinstance(argument, tf.Tensor):
                argument.set_shape(var.shape)
            return var.parts_of(argument)
        return [argument] * len(var.shards)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        fn = with_this_generator(fn)
        # TensorFlow calls it in a thread of its own.
        surroundings = contextvars.copy_context()
        return super()._call_for_each_replica(
            functools.partial(surroundings.run, fn), args, kwargs
        )

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

    def _create_variable_round_robin(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> tf.Variable:
        # The base class would use the ps in turn; the placement decides instead.
        spec = spec_before_creation(kwargs)
        ps = ps_for(self._placement, spec, self.num_ps)
        variable = self._create_on(ps, next_creator, kwargs)
        self._notify_placement(spec, variable)
        return variable

    def _create_on(
        self, ps: int, creator: Callable[..., tf.Variable], kwargs: dict[str, Any]
    ) -> Any:
        with _without_colocation(), tf.device(f"/job:ps/task:{ps}/device:CPU:0"):
            return creator(**kwargs)

    def _record(self, variable: ParameterServerVariable) -> None:
        name = variable_path.get() or variable.name.removesuffix(":0")
        spec = spec_of(name, variable.shape, variable.dtype)
        device = tf.DeviceSpec.from_string(variable.device)
        placed = PlacedVariable(spec, device.task)
        self._placed.append((weakref.ref(variable), placed))

    def _assert_being_scheduled_by_cluster_coordinator(self) -> None:
        # The base class warns about `run` outside a scheduled function. tfdist traces a
        # step before it schedules it, so warn only about a call that would really run
        # on the chief.
        if tf.executing_eagerly():
            super()._assert_being_scheduled_by_cluster_coordinator()


def _widened(update: Callable[..., Any], dtype: tf.DType) -> Callable[..., Any]:
    """Returns an update whose gradient has travelled in fewer bits than it has."""

    def widened(var: Any, gradient: Any, *rest: Any, **kwargs: Any) -> Any:
        return update(var, tf.cast(gradient, dtype), *rest, **kwargs)

    return widened


def _without_colocation() -> AbstractContextManager[Any]:
    """Ignores colocations of the surrounding code, which could contradict a device."""
    # `tf.compat.v1.colocate_with` does the same, and warns that it is deprecated.
    if tf.executing_eagerly():
        return nullcontext()
    graph = tf.compat.v1.get_default_graph()
    return graph.colocate_with(None, ignore_existing=True)


def _sum_duplicate_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the values of each row, so that every row occurs once in the gradient.

    Optimizers square gradients, and the sum of squares is not the square of the sum.
    """
    # Sum where the gradient was computed: on a worker, this saves sending duplicates.
    with tf.device(gradient.values.device):
        rows, positions = tf.unique(gradient.indices)
        summed = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(summed, rows, gradient.dense_shape)
