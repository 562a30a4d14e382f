"""The return of a lost worker: its request, and the decision about it.

The worker asks until the lead has read its request. The lead tells the others in the
message of a mix, and from the next exchange on all of them count the worker again. Then
the lead hands over its state, and the worker continues from there.
"""

import copy
import dataclasses
import enum
from collections.abc import Mapping, Sequence

import numpy as np

from tfdist._support.errors import Error
from tfdist.local_update.message import pack, unpack

_DIFFERS = (
    "this worker was started again, and calls fit in another way than the others did: with "
    "other data, other arguments or another model. Run the same script, with the same "
    "seeds, on all workers"
)


class RejoinError(Error, RuntimeError):
    """A restarted worker cannot take part in the others' exchanges."""


@dataclasses.dataclass
class StartRecord:
    """Values that workers told each other as `fit` started, in order.

    Attributes:
        numbers: For each time, the numbers of each worker.
        texts: For each time, the text of each worker by its name.
    """

    numbers: list[list[list[int]]] = dataclasses.field(default_factory=list)
    texts: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def copy(self) -> "StartRecord":
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


@dataclasses.dataclass(frozen=True)
class RejoinRequest:
    """The request of a restarted worker to rejoin.

    Attributes:
        worker: Its index.
        nonce: The number of this process, at random: the answer names it.
        version: The version that it would have when it is back: see `members.Members`.
        fit: The number of this call of `fit` in its script, from 1.
        settings: How its strategy mixes models, in words.
    """

    worker: int
    nonce: int
    version: int
    fit: int
    settings: str

    def pack(self) -> np.ndarray:
        """Returns it as uint8."""
        return pack(dataclasses.asdict(self), [])

    @classmethod
    def unpack(cls, payload: np.ndarray) -> "RejoinRequest":
        """Returns the request that these bytes are."""
        return cls(**unpack(payload)[0])


class Move(enum.Enum):
    """The next move of a restarted worker."""

    LEAVE = "tell the others that the process which they wait for has ended"
    ASK = "ask to take part again"
    WAIT = "wait for the answer"


def next_move(version: int, asked: int | None) -> Move:
    """Decides the next move of a restarted worker, by the version it has asked for.

    >>> next_move(0, None).name  # Nobody has noticed that it was started again.
    'LEAVE'
    >>> next_move(1, None).name, next_move(1, 2).name, next_move(2, 2).name
    ('ASK', 'WAIT', 'WAIT')
    """
    if version % 2 == 0:
        return Move.WAIT if version == asked else Move.LEAVE
    return Move.WAIT if asked == version + 1 else Move.ASK


def chosen(
    requests: Mapping[int, RejoinRequest], versions: Sequence[int]
) -> RejoinRequest | None:
    """Decides which worker comes back next: one at a time, the first that has asked."""
    for worker, request in sorted(requests.items()):
        # Any other version is that of an earlier time at which it was lost.
        if versions[worker] % 2 and request.version == versions[worker] + 1:
            return request
    return None


def refusal(request: RejoinRequest, fit: int, settings: str) -> str:
    """Returns why a worker cannot take part again, or '' if it can."""
    if request.settings != settings:
        return (
            f"its LocalUpdateStrategy has {request.settings}, and that of the others "
            f"{settings}. Start it with the same arguments as they were"
        )
    if request.fit != fit:
        return (
            f"the others are in their call number {fit} of fit, and it is in number "
            f"{request.fit}: a script starts from its first call, so a worker can come "
            "back during that one alone. Start the whole cluster again"
        )
    return ""


def as_arrays(
    received: Sequence[np.ndarray], like: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns arrays of the shapes and dtypes of others, from their bytes.

    Raises:
        RejoinError: If there are more or fewer, or they have other sizes.
    """
    theirs, mine = [len(each) for each in received], [each.nbytes for each in like]
    if theirs != mine:
        raise RejoinError(
            "the model, its optimizer or the outer optimizer of this worker has other "
            f"variables than the others' ({len(mine)} of {sum(mine)} bytes, and "
            f"{len(theirs)} of {sum(theirs)}): run the same script on all workers"
        )
    pairs = zip(received, like, strict=True)
    return [each.copy().view(old.dtype).reshape(old.shape) for each, old in pairs]
