"""Batches that a worker reads itself, by the lease that a step comes with.

The chief reads the dataset of leases as it reads any dataset: batch by batch, to their end
or to a checkpoint. So a lease is open until its step is sent, in flight with that step,
and done once that has finished; if its worker is lost, the step goes to another, and
the lease with it. The reader of a lease, and the user's own pipeline, are a graph that
is part of the function which the workers run.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.cluster.liveness.step_error import saying
from tfdist.data import chief_only_reasons
from tfdist.data.auto_leases import AutoLeased, auto_leased
from tfdist.data.chief_only_reasons import OnlyTheChiefReads
from tfdist.data.errors import SourceError
from tfdist.data.leased import LeasedDataset
from tfdist.data.record_index import mean_length
from tfdist.data.record_places import TURN_OFF
from tfdist.data.source_files import SourceFiles, Stamp
from tfdist.data.transformations import above_a_source
from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.feed.lease_pipeline import LeasePipeline, traced
from tfdist.parameter_server.feed.shared_files import SharedFiles
from tfdist.parameter_server.feed.sources import ChiefBatches

_log = logging.getLogger("tfdist")

_NO_RECORD = "Dataset was empty."  # TensorFlow's error.
# A worker opens the file of a record in 60 to 80 microseconds, in which 1 Gbit/s sends 10 kB.
_LEAST_RECORD_BYTES = 16_384
# Each has functions of its own on the workers, the step among them. A program whose
# pipeline differs in each `fit` would trace them anew, where the chief's route does not.
_MOST_PIPELINES = 8


@dataclass(eq=False)
class LeasedBatches(ChiefBatches):
    """Batches that a worker reads by leases, which the chief sends as rows.

    Args:
        dataset: The dataset.
        pipeline: The pipeline that reads its leases.
        auto_leased: The parts that it was made of, if not by `tfdist.data`.

    Attributes:
        leases: The dataset of leases.
        files: The source, with its files as the last iteration found them.
    """

    dataset: InitVar[LeasedDataset]
    pipeline: LeasePipeline
    auto_leased: AutoLeased | None = None

    def __post_init__(self, dataset: LeasedDataset) -> None:
        super().__init__(BatchStructure(dataset.element_spec))
        self.leases = dataset.leases
        self.row_structure = BatchStructure(self.leases.element_spec)
        self.files = dataset.source

    @property
    def key(self) -> tuple[type, str]:
        """A key of this pipeline alone, whose functions read by its leases."""
        return type(self), f"{self.structure.key} by lease {self.pipeline.key}"

    def files_now(self) -> SourceFiles:
        """Returns the files as an iteration finds them when it begins.

        Raises:
            SourceError: If those of a source of `tfdist.data` are not what they were.
        """
        if self.auto_leased is None:
            self.files.check()
            return self.files
        there = []
        for path in self.auto_leased.paths:
            # One that is missing is told when its turn comes.
            with contextlib.suppress(SourceError):
                there.append(Stamp.of(path))
        self.files = SourceFiles(tuple(there), self.files.describe)
        return self.files

    def explained(self, argument: Nest, error: tf.errors.OpError) -> Exception:
        """Returns the error of a step on some leases, with a description of them."""
        told = f"{error.message}\n  while it read {self._describe(argument)}"
        if changed := self.files.what_changed(error.message):
            told = told.replace(_NO_RECORD, "no record begins where its lease says")
            return SourceError(f"{changed}\n  {told}")
        return saying(error, told)

    def _describe(self, rows: tf.Tensor) -> str:
        columns = [
            np.concatenate(
                [
                    np.atleast_1d(tf.io.parse_tensor(each, spec.dtype).numpy())
                    for each in part
                ]
            )
            for part, spec in zip(
                rows.numpy().T, self.row_structure.present, strict=False
            )
        ]
        return self.files.describe(*columns)

    def read(self, of_row: list[tf.Tensor]) -> list[tf.Tensor]:
        """Reads a batch, in the function being traced, and returns its tensors."""
        return self.pipeline.read(of_row)


class LeaseReaders:
    """Finds how workers read datasets by leases, and says so where only the chief can.

    Datasets that do the same share what reads them, and so the functions of the workers,
    also if a program makes its dataset anew for each `fit`.
    """

    def __init__(self, files: SharedFiles) -> None:
        self._files = files
        self._of_sources: dict[str, LeasePipeline] = {}
        self._of_ordinary_ones: dict[str, LeasePipeline] = {}
        self._told: set[str] = set()

    def of(self, dataset: tf.data.Dataset) -> LeasedBatches | None:
        """Returns how the workers read a dataset, or None if the chief has to read it.

        If that is so though a source of `tfdist.data` is part of it, or though it reads
        files or is large, a line in the log says why, and what to do.
        """
        try:
            found = leased_of(dataset)
            if found is None:
                return None
            if isinstance(found, LeasedDataset):
                return LeasedBatches(found, self._pipeline_of(found, self._of_sources))
            pipeline = self._pipeline_of(
                found.leased, self._of_ordinary_ones, _MOST_PIPELINES
            )
            return LeasedBatches(found.leased, pipeline, found)
        except OnlyTheChiefReads as reason:
            self._tell_once(reason)
            return None

    def leased(self, dataset: tf.data.Dataset) -> LeasedDataset:
        """Returns a dataset that the workers can read by leases now.

        Raises:
            OnlyTheChiefReads: If the chief has to read it.
        """
        found = leased_of(dataset)
        if found is None:
            raise chief_only_reasons.without_leases()
        if isinstance(found, LeasedDataset):
            return found
        if why_not := self._files.why_not(found.paths):
            raise chief_only_reasons.not_shared(why_not)
        return found.leased

    def can_read(self, leased: LeasedBatches) -> bool:
        """Returns True if all workers have the chief's files of a dataset now.

        Always true of a source of `tfdist.data`: its user has said so.
        """
        if leased.auto_leased is None:
            return True
        why_not = self._files.why_not(leased.auto_leased.paths)
        if why_not:
            self._tell_once(chief_only_reasons.not_shared(why_not))
        elif leased.pipeline.key not in self._told:
            self._told.add(leased.pipeline.key)
            _log.info(
                "the workers read this dataset themselves, by leases: %d files such as "
                "%s; %s",
                len(leased.auto_leased.paths),
                leased.auto_leased.paths[0],
                TURN_OFF,
            )
        return not why_not

    def _tell_once(self, reason: OnlyTheChiefReads) -> None:
        if reason.why not in self._told:
            self._told.add(reason.why)
            _log.log(
                logging.WARNING if reason.matters else logging.INFO,
                "the chief reads this dataset and sends its examples to the workers: %s. "
                "To have the workers read it, %s",
                reason.why,
                reason.what_to_do,
            )

    def _pipeline_of(
        self,
        dataset: LeasedDataset,
        pipelines: dict[str, LeasePipeline],
        most: float = float("inf"),
    ) -> LeasePipeline:
        """Returns the reader of a dataset, one of some pipelines or a new one of them.

        Raises:
            OnlyTheChiefReads: If workers cannot run it, or have too many others.
        """
        function, definition, key = traced(dataset.read, dataset.leases.element_spec)
        if key not in pipelines:
            if len(pipelines) >= most:
                raise chief_only_reasons.one_of_many(len(pipelines))
            pipelines[key] = LeasePipeline(function, definition, key)
        return pipelines[key]


def leased_of(dataset: tf.data.Dataset) -> LeasedDataset | AutoLeased | None:
    """Returns a dataset that workers may read by leases, or None if none is to be.

    Raises:
        OnlyTheChiefReads: If the chief has to read it.
    """
    if isinstance(dataset, LeasedDataset):
        return dataset
    if path := _path_to_source(dataset):
        names = [type(each).__name__ for each in path]
        raise chief_only_reasons.transformed(above_a_source(names))
    policy = dataset.options().experimental_distribute.auto_shard_policy
    # Endless ones are read by the workers without leases, if they can be.
    if policy == tf.data.experimental.AutoShardPolicy.OFF or _is_endless(dataset):
        return None
    found = auto_leased(dataset)
    if found is None or _is_endless(found.leased.leases):
        return None
    length = _length_of_records(found.paths)
    if not length:
        return None
    if length < _LEAST_RECORD_BYTES:
        raise chief_only_reasons.short(length, _LEAST_RECORD_BYTES)
    return found


def _length_of_records(paths: Sequence[str]) -> float:
    """Returns the mean length of records, as the first file that has some tells."""
    for path in paths:
        # Reading a pipe removes its contents.
        with contextlib.suppress(OSError):
            if os.path.isfile(path) and (length := mean_length(path)):
                return length
    return 0.0


def _is_endless(dataset: tf.data.Dataset) -> bool:
    return dataset.cardinality() == tf.data.INFINITE_CARDINALITY


def _path_to_source(dataset: tf.data.Dataset) -> list[Any]:
    """Returns the datasets from a dataset to a source that it reads; none without."""
    for each in _tf.inputs_of(dataset):
        if isinstance(each, LeasedDataset):
            return [dataset]
        if path := _path_to_source(each):
            return [dataset, *path]
    return []
