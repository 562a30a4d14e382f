"""Messages between the workers of a simulation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdist.local_update.message import pack, unpack
from tfdist.research.federated.client_update import ClientUpdate


class Parcel(NamedTuple):
    """A message between workers: JSON-compatible data, and floats of any shape."""

    header: dict[str, Any]
    array: np.ndarray

    def pack(self) -> np.ndarray:
        """Returns the parcel as bytes: uint8, (length,)."""
        about = [self.array.shape, self.array.dtype.str]
        return pack([self.header, *about], [self.array])

    @classmethod
    def unpack(cls, payload: np.ndarray) -> "Parcel":
        """Returns the parcel of some bytes."""
        (header, shape, dtype), (data,) = unpack(payload)
        return cls(header, data.copy().view(dtype).reshape(shape))


Trained = tuple[list[ClientUpdate], int]
NOTHING = Parcel({"answered": 0, "clients": [], "examples": []}, np.zeros((0, 0)))


def packed(trained: Trained) -> Parcel:
    """Returns the updates of a worker's clients, for the server."""
    updates, answered = trained
    header = {
        "answered": answered,
        "clients": [each.client for each in updates],
        "examples": [each.examples for each in updates],
    }
    if not updates:
        return NOTHING
    return Parcel(header, np.stack([each.change for each in updates]))


def unpacked(parcels: Sequence[Parcel]) -> list[ClientUpdate]:
    """Returns the updates of all workers, in the order of clients."""
    updates = [
        ClientUpdate(client, change, examples)
        for parcel in parcels
        for client, examples, change in zip(
            parcel.header["clients"],
            parcel.header["examples"],
            parcel.array,
            strict=True,
        )
    ]
    return sorted(updates, key=lambda each: each.client)
