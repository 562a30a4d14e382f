"""The checkpoints of every `fit` of a program in which all replicas step together."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from tf_config.contract import CHECKPOINT_DIR
from tfdist.checkpoint.kept_fit import Group, KeptFit, told_if_not_kept
from tfdist.checkpoint.snapshot import Snapshot
from tfdist.checkpoint.store import CheckpointStore
from tfdist.cluster.settings import Checkpoints


@dataclass(eq=False)
class Keeper:
    """Keeps the checkpoints of every `fit`, each in a directory of its own.

    `join` waits for the steps that are in flight.
    """

    options: Checkpoints
    group: Callable[[], Group]
    join: Callable[[], None]

    def __post_init__(self) -> None:
        self._fit: KeptFit | None = None
        self._fits = 0

    @contextlib.contextmanager
    def keeping(
        self, model: keras.Model, callbacks: list[keras.callbacks.Callback], epochs: int
    ) -> Iterator[KeptFit | None]:
        """Surrounds a `fit`; yields the callback to add after the others, or None.

        The callbacks include one for the history. Raises ValueError if only some
        processes have a directory.
        """
        # A callback may itself call `fit`. That inner call writes no checkpoints.
        if self._fit is not None:
            yield None
            return
        group = self.group()
        # Asked in any case: the other processes wait for this one's answer.
        keeps = self.options.directory is not None
        if len(set(group.gather_numbers([keeps])[:, 0].tolist())) > 1:
            raise ValueError(
                "some tasks have a directory for checkpoints, and others have none: pass "
                f"the same checkpoint_dir, or set {CHECKPOINT_DIR} on all of them, or on "
                "none (the launcher's --checkpoint_dir does). The chief's is used"
            )
        if self.options.directory is None:
            with told_if_not_kept(self.options.directory):
                yield None
            return
        # Numbered, so that a restarted program finds its n-th `fit`.
        directory = Path(self.options.directory, f"fit-{self._fits:03d}")
        self._fits += 1
        with contextlib.ExitStack() as stack:
            store = None
            if group.is_chief:
                kept = CheckpointStore(directory, self.options.keep)
                store = stack.enter_context(kept)
            options, join = self.options, self.join
            fit = KeptFit(options, store, group, callbacks, epochs, join)
            fit.find()
            self._fit = fit
            try:
                yield fit
            finally:
                self._fit = None
                # Otherwise the next `fit` of this model would begin at this epoch too.
                model._initial_epoch = None
                fit.drain()

    @property
    def is_keeping(self) -> bool:
        """True if a `fit` with checkpoints is running."""
        return self._fit is not None

    def start_of_data(self) -> Snapshot | None:
        """Returns where the data that is asked for begins; None for its beginning."""
        return self._fit.start_of_data() if self._fit else None

    def follow(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Passes on the steps of an epoch, without those before the checkpoint."""
        return self._fit.follow(epoch_iterator, steps) if self._fit else steps
