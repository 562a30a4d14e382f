"""What travels between the workers of a simulation."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdist.federated.client_update import ClientUpdate


class Parcel(NamedTuple):
    """What travels between workers: plain data, as JSON has it, and floats of any shape."""

    header: dict[str, Any]
    array: np.ndarray

    def pack(self) -> np.ndarray:
        """Returns the parcel as bytes: uint8, (length,)."""
        shape = {"shape": self.array.shape, "dtype": self.array.dtype.str}
        text = json.dumps({**self.header, "array": shape}).encode()
        parts = [len(text).to_bytes(8, "little"), text, self.array.tobytes()]
        return np.frombuffer(b"".join(parts), np.uint8)

    @classmethod
    def unpack(cls, payload: np.ndarray) -> "Parcel":
        """Returns the parcel of some bytes."""
        data = payload.tobytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        about = header.pop("array")
        array = np.frombuffer(data[end:], about["dtype"]).reshape(about["shape"])
        return cls(header, array)


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
