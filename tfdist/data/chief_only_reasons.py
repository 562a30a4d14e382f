"""Why only the chief can read a dataset, and what to do about it."""


class OnlyTheChiefReads(Exception):
    """A dataset that workers cannot read by leases.

    `matters` is whether the chief is likely to be what limits training by it.
    """

    def __init__(self, why: str, what_to_do: str, matters: bool = True) -> None:
        super().__init__(why)
        self.why = why
        self.what_to_do = what_to_do
        self.matters = matters


def calls_python() -> OnlyTheChiefReads:
    """Returns what is said of a pipeline with `tf.py_function` or the like."""
    return OnlyTheChiefReads(
        "its pipeline calls Python functions, and workers run no Python of yours",
        "write what tf.py_function or tf.numpy_function does with operations of "
        "TensorFlow, or do it once and save the result",
    )


def uses_resource() -> OnlyTheChiefReads:
    """Returns what is said of a pipeline with something that the chief alone has."""
    return OnlyTheChiefReads(
        "its pipeline uses a variable, a table or a generator of random numbers, which "
        "exists on the chief alone",
        "make it a layer of the model, or use operations that keep nothing, such as "
        "tf.image.random_* or tf.random.uniform",
    )


def large(size: int, most: int) -> OnlyTheChiefReads:
    """Returns what is said of a pipeline with arrays of `size` bytes."""
    return OnlyTheChiefReads(
        f"its pipeline uses {size:,} bytes of arrays; up to {most:,} go to the workers "
        "with it",
        "make them part of the source",
    )


def large_in_memory(size: int) -> OnlyTheChiefReads:
    """Returns what is said of a dataset of large arrays in the chief's memory."""
    return OnlyTheChiefReads(
        f"it is {size:,} bytes of arrays in the chief's memory",
        "write each array with numpy.save to a path that all tasks see, and begin with "
        "tfdist.data.from_source(paths)",
    )


def generated() -> OnlyTheChiefReads:
    """Returns what is said of a generator, a `PyDataset`, or the like."""
    return OnlyTheChiefReads(
        "a Python function makes its examples, and workers run no Python of yours",
        "write the examples to TFRecord files, or to .npy files for "
        "tfdist.data.from_source",
        matters=False,
    )


def other_files(reader: str) -> OnlyTheChiefReads:
    """Returns what is said of files that are read from their beginning."""
    return OnlyTheChiefReads(
        f"{reader} reads its files from their beginning",
        "write the examples to TFRecord files without compression",
    )


def compressed() -> OnlyTheChiefReads:
    """Returns what is said of compressed records."""
    return OnlyTheChiefReads(
        "its records are compressed, and must be read from the beginning of their file",
        "write them without compression",
    )


def remote() -> OnlyTheChiefReads:
    """Returns what is said of files that have an address in place of a path."""
    return OnlyTheChiefReads(
        "its files are not on a path of the file system, where records are found quickly",
        "mount them at a path that all tasks see",
    )


def transformed(transformation: str) -> OnlyTheChiefReads:
    """Returns what is said of a transformation that is not done by lease."""
    return OnlyTheChiefReads(
        f"{transformation} comes after its source, and needs the examples in one place",
        "leave it out, or put what it does into map; shuffle, repeat, take, skip, "
        "shard, one batch and map keep the examples on the workers",
    )


def repeated_after_map() -> OnlyTheChiefReads:
    """Returns what is said of a shuffle that a map keeps apart from a repeat."""
    return OnlyTheChiefReads(
        "map stands between shuffle and repeat, without which they have another order",
        "put repeat before map",
    )


def within_interleave(transformation: str) -> OnlyTheChiefReads:
    """Returns what is said of a transformation of the records of one file."""
    return OnlyTheChiefReads(
        f"{transformation} is within interleave or flat_map, before the files are joined",
        "move it behind them",
    )


def drawn_with_seed(operation: str) -> OnlyTheChiefReads:
    """Returns what is said of numbers that would be others on the workers."""
    return OnlyTheChiefReads(
        f"{operation} in its pipeline draws with a seed, and workers would draw other "
        "numbers (tf.random.set_seed and keras.utils.set_random_seed give it one, too)",
        "draw by tf.image.stateless_random_* or tf.random.stateless_*, in layers of the "
        "model, or without a seed",
    )


def keeps_state(operation: str) -> OnlyTheChiefReads:
    """Returns what is said of an operation that remembers or shows something."""
    return OnlyTheChiefReads(
        f"{operation} in its pipeline has an effect beside its result, which would be "
        "that of each worker",
        "leave it out",
    )


def unknown(operation: str) -> OnlyTheChiefReads:
    """Returns what is said of an operation that is none of TensorFlow's own."""
    return OnlyTheChiefReads(
        f"{operation} in its pipeline is no operation of TensorFlow, and workers may not "
        "have it",
        "use one of TensorFlow's, or do it once and save the result",
    )


def of_a_place(operation: str) -> OnlyTheChiefReads:
    """Returns what is said of an operation whose result depends on where it runs."""
    return OnlyTheChiefReads(
        f"{operation} in its pipeline needs what another process may not have",
        "leave it out, or write what it reads to the records",
    )


def computed_names(by: str) -> OnlyTheChiefReads:
    """Returns what is said of files whose names are not known before they are read."""
    return OnlyTheChiefReads(
        f"the names of its files come from {by}, and are not known in advance",
        "begin with tf.data.TFRecordDataset(paths) or tf.data.Dataset.list_files(pattern)",
    )


def not_shared(why: str) -> OnlyTheChiefReads:
    """Returns what is said of files that some worker does not have."""
    return OnlyTheChiefReads(
        why,
        "have the same files at the same paths on the chief and on every worker; with "
        "min_workers, begin with tfdist.data.from_files(paths)",
    )


def one_of_many(others: int) -> OnlyTheChiefReads:
    """Returns what is said of a pipeline that differs from many before it."""
    return OnlyTheChiefReads(
        f"its pipeline differs from {others} before it, and each has functions of its own "
        "on the workers",
        "make it once, with what changes from call to call in its elements",
    )


def short(length: float, least: int) -> OnlyTheChiefReads:
    """Returns what is said of records that cost less to send than to find."""
    return OnlyTheChiefReads(
        f"its records have about {length:,.0f} bytes, and are sent sooner than a worker "
        f"finds them; of {least:,} or more, it would find them",
        "begin with tfdist.data.from_files(paths)",
        matters=False,
    )


def without_leases() -> OnlyTheChiefReads:
    """Returns what is said of a dataset of which nothing is looked for in files."""
    return OnlyTheChiefReads(
        "it is small, endless, or without records, or its AutoShardPolicy is OFF",
        "begin with tfdist.data.from_source or tfdist.data.from_files",
        matters=False,
    )
