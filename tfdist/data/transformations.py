"""The transformations of a dataset, by the names that users write."""

from collections.abc import Sequence

# TensorFlow's operations for several transformations, and the users' names of those.
_WRITTEN = {
    "dense_to_ragged": "ragged_batch",
    "dense_to_sparse": "sparse_batch",
    "directed_interleave": "sample_from_datasets, choose_from_datasets or "
    "rejection_resample",
    "group_by_window": "group_by_window or bucket_by_sequence_length",
    "input_pipelines": "distribute_datasets_from_function",
    "tensor": "from_tensors",
    "tensor_slice": "from_tensor_slices",
    "zip": "zip or enumerate",
}
# They consist of others, of which nobody wrote any.
_OF_OTHERS = ("InputPipelines", "DirectedInterleave", "Snapshot")
_BATCHES = ("batch", "padded_batch", "ragged_batch")
# Elements in another structure, which TensorFlow adds by itself.
_WITHOUT_NAME = "_RestructuredDataset"


def shown(name: str) -> str:
    """Returns the name of an operation or class of datasets as a user knows it.

    >>> shown("ParallelFilterDatasetV2"), shown("_DenseToRaggedDataset")
    ('filter', 'ragged_batch')
    """
    short = name.strip("_").partition("Dataset")[0].removeprefix("Parallel")
    short = short.removesuffix("Batch") if short.startswith("DenseTo") else short
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in short).strip("_")
    return _WRITTEN.get(words, words)


def above_a_source(names: Sequence[str]) -> str:
    """Returns which transformation keeps a source from being read by leases.

    The names are of classes, from the last dataset to the one in the way.

    >>> above_a_source(["_BatchDataset", "_UnbatchDataset", "_RestructuredDataset"])
    'unbatch'
    >>> above_a_source(["_PaddedBatchDataset"])
    'a second batch'
    >>> above_a_source(["InputPipelines", "_DirectedInterleaveDataset"])
    'distribute_datasets_from_function'
    """
    for name in names:
        if name.strip("_").startswith(_OF_OTHERS):
            return shown(name)
    first = shown([name for name in names if name != _WITHOUT_NAME][-1])
    return "a second batch" if first in _BATCHES else first
