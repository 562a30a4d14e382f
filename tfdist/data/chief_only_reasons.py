"""Reasons why only the chief can read a dataset, with the remedy for each."""

from collections.abc import Callable


class OnlyTheChiefReads(Exception):
    """A dataset that workers cannot read by leases.

    `matters` is whether the chief is likely to be what limits training by it.
    """

    def __init__(self, why: str, what_to_do: str, matters: bool = True) -> None:
        super().__init__(why)
        self.why = why
        self.what_to_do = what_to_do
        self.matters = matters


def _reason(
    why: str, what_to_do: str, matters: bool = True
) -> Callable[..., OnlyTheChiefReads]:
    """Returns a maker of a reason's error, given the values of the braces in `why`."""
    return lambda *given: OnlyTheChiefReads(why.format(*given), what_to_do, matters)


calls_python = _reason(
    "its pipeline calls Python functions, and workers run no Python of yours",
    "write what tf.py_function or tf.numpy_function does with operations of "
    "TensorFlow, or do it once and save the result",
)
uses_resource = _reason(
    "its pipeline uses a variable, a table or a generator of random numbers, which "
    "exists on the chief alone",
    "make it a layer of the model, or use operations that keep nothing, such as "
    "tf.image.random_* or tf.random.uniform",
)
large = _reason(
    "its pipeline uses {:,} bytes of arrays; up to {:,} go to the workers with it",
    "make them part of the source",
)
large_in_memory = _reason(
    "it is {:,} bytes of arrays in the chief's memory",
    "write each array with numpy.save to a path that all tasks see, and begin with "
    "tfdist.data.from_source(paths)",
)
generated = _reason(
    "a Python function makes its examples, and workers run no Python of yours",
    "write the examples to TFRecord files, or to .npy files for "
    "tfdist.data.from_source",
    matters=False,
)
other_files = _reason(
    "{} reads its files from their beginning",
    "write the examples to TFRecord files without compression",
)
compressed = _reason(
    "its records are compressed, and must be read from the beginning of their file",
    "write them without compression",
)
remote = _reason(
    "its files are not on a path of the file system, where records are found quickly",
    "mount them at a path that all tasks see",
)
transformed = _reason(
    "{} comes after its source, and needs the examples in one place",
    "leave it out, or put what it does into map; shuffle, repeat, take, skip, "
    "shard, one batch and map keep the examples on the workers",
)
repeated_after_map = _reason(
    "map stands between shuffle and repeat, without which they have another order",
    "put repeat before map",
)
within_interleave = _reason(
    "{} is within interleave or flat_map, before the files are joined",
    "move it behind them",
)
drawn_with_seed = _reason(
    "{} in its pipeline draws with a seed, and workers would draw other numbers "
    "(tf.random.set_seed and keras.utils.set_random_seed give it one, too)",
    "draw by tf.image.stateless_random_* or tf.random.stateless_*, in layers of the"
    " model, or without a seed",
)
keeps_state = _reason(
    "{} in its pipeline has an effect beside its result, which would be that of "
    "each worker",
    "leave it out",
)
unknown = _reason(
    "{} in its pipeline is no operation of TensorFlow, and workers may not have it",
    "use one of TensorFlow's, or do it once and save the result",
)
of_a_place = _reason(
    "{} in its pipeline needs what another process may not have",
    "leave it out, or write what it reads to the records",
)
computed_names = _reason(
    "the names of its files come from {}, and are not known in advance",
    "begin with tf.data.TFRecordDataset(paths) or tf.data.Dataset.list_files(pattern)",
)
not_shared = _reason(
    "{}",
    "have the same files at the same paths on the chief and on every worker; with "
    "min_workers, begin with tfdist.data.from_files(paths)",
)
one_of_many = _reason(
    "its pipeline differs from {} before it, and each has functions of its own on "
    "the workers",
    "make it once, with what changes from call to call in its elements",
)
short = _reason(
    "its records have about {:,.0f} bytes, and are sent sooner than a worker finds "
    "them; of {:,} or more, it would find them",
    "begin with tfdist.data.from_files(paths)",
    matters=False,
)
without_leases = _reason(
    "it is small, endless, or without records, or its AutoShardPolicy is OFF",
    "begin with tfdist.data.from_source or tfdist.data.from_files",
    matters=False,
)
