"""What workers tell each other as `fit` starts, for one that comes back later."""

import copy
import dataclasses

import numpy as np

from tfdist.local_update.rejoin import RejoinError


@dataclasses.dataclass
class Record:
    """What was told, in order.

    Attributes:
        numbers: For each time, the numbers of each worker.
        texts: For each time, the text of each worker by its name.
    """

    numbers: list[list[list[int]]] = dataclasses.field(default_factory=list)
    texts: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def copy(self) -> "Record":
        """Returns a record of the same."""
        return copy.deepcopy(self)

    def next_numbers(self, columns: int) -> np.ndarray:
        """Removes and returns the first numbers: int64, a row per worker.

        Raises:
            RejoinError: If they told none any more, or more or fewer.
        """
        table = np.array(self.numbers.pop(0) if self.numbers else [], np.int64)
        if table.ndim != 2 or table.shape[1] != columns:
            raise RejoinError(_DIFFERS)
        return table

    def next_texts(self) -> dict[str, str]:
        """Removes and returns the first texts.

        Raises:
            RejoinError: If they told none any more.
        """
        if not self.texts:
            raise RejoinError(_DIFFERS)
        return self.texts.pop(0)


_DIFFERS = (
    "this worker was started again, and calls fit in another way than the others did: with "
    "other data, other arguments or another model. Run the same script, with the same "
    "seeds, on all workers"
)
