"""Collective computations on what the workers put into their mailboxes.

They work on any `Transport`, with numpy alone. A lost worker leaves, and the others go on
without it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist._support.context import having
from tfdist.local_update.compression import Coder, Wire
from tfdist.local_update.message import Call, bytes_of
from tfdist.local_update.messenger import NO_BYTES, Messenger, in_turn
from tfdist.local_update.reads import Range
from tfdist.local_update.rejoin import RejoinListener, RejoinRequest

_ALL: Range = (0, -1)


class Exchange(Messenger):
    """This worker's part in exchanges between workers.

    All workers call the same methods in the same order: each waits for the one before it,
    also where that runs in the background.

    Attributes:
        rejoin_listener: The listener for lost workers that ask to rejoin, while they
            may; or None.
        admitted: The worker that this one, which leads, has admitted and not told yet.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # Versions known halfway through each of the last means, when all heard all.
        self._heard = tuple(self.members.versions)
        self._versions = [self._heard]
        self.rejoin_listener: RejoinListener | None = None
        self.admitted: RejoinRequest | None = None
        self._among = self.members.present  # Workers of the last mean.

    @in_turn
    def gather(self, array: np.ndarray) -> dict[int, np.ndarray]:
        """Returns the array of each worker that is present, by its index.

        Cost: one message to and from each other worker.
        """
        return self._gather(Call.GATHER, array)

    def _gather(
        self, call: Call, array: np.ndarray, is_read: bool = True
    ) -> dict[int, np.ndarray]:
        key = self._publish_next(call, bytes_of(array))
        senders = self.members.peers if is_read else []
        found = self._collect(key, call, dict.fromkeys(senders, _ALL))
        arrays = {i: each.payload.view(array.dtype) for i, each in found.items()}
        arrays[self.members.me] = array.reshape(-1)
        return dict(sorted(arrays.items()))

    @in_turn
    def mean(self, vector: np.ndarray, wire: Wire | None = None) -> np.ndarray:
        """Returns the mean of all workers' vectors, the same bits on each.

        Each worker owns a part of the vector. It reads that part of all vectors, and
        then the means of the other parts from their owners: the `all_to_all` schedule
        of `tfdist.all_reduce.schedule`. The part of a worker that is lost meanwhile
        stays as it is here, until the next time. Vectors are one-dimensional, of the
        same size and dtype on all workers. Without `wire`, all their bits are sent.

        Cost: in and out of each of n workers, 2(n-1)/n times the bytes of the vector. As
        parts end where blocks of int8 do, less for some workers and more for the last.
        """
        key = self._next_key
        # Alike on all workers, whether or not they use the keys of `mean_again`.
        self._next_key += 4
        self._among = self.members.present
        self._open_door()
        mean = self._mean(key, vector, wire or _exact(vector))
        self._versions = [*self._versions[-2:], self._heard]
        return mean

    @property
    def has_changed(self) -> bool:
        """True if workers were lost or came back, as the last two means have shown.

        One worker may notice a mean later than another. As each says so twice, there is a
        mean in which all do.
        """
        return len(set(self._versions)) > 1

    @in_turn
    def mean_again(self, vector: np.ndarray) -> np.ndarray:
        """Returns the mean of another vector, right after `mean`.

        Among the workers that call it: those that do not are not waited for beyond their
        next message.
        """
        return self._mean(self._next_key - 2, vector, _exact(vector))

    def _mean(self, key: int, vector: np.ndarray, wire: Wire) -> np.ndarray:
        # A worker that comes back during a mean takes part in the next one.
        present = [i for i in self._among if i in self.members.present]
        coder, place = wire.coder, present.index(self.members.me)
        begin, end = (
            coder.cut(len(vector) * i // len(present)) for i in (place, place + 1)
        )
        payload, sent = wire.vectors.send(vector)
        self._publish(key, Call.MEAN, payload)
        part = (coder.size(0, begin), coder.size(begin, end))
        others = [each for each in present if each != self.members.me]
        found = self._collect(key, Call.MEAN, dict.fromkeys(others, part))
        self._heard = tuple(self.members.versions)
        payloads = [each.payload for each in found.values()]
        # A worker that was started again counts from 0: it may have sent something else.
        parts = [coder.decode(each, begin) for each in payloads if len(each) == part[1]]
        mean = np.mean([sent[begin:end], *parts], axis=0, dtype=np.float64)
        mean = mean.astype(vector.dtype)
        result = vector.copy()
        payload, result[begin:end] = wire.means.send(mean, begin)
        self._publish(key + 1, Call.MEAN, payload, begin)
        # Only from those present: another may wait for this worker's next message.
        found = self._collect(key + 1, Call.MEAN, dict.fromkeys(found, _ALL))
        for each in found.values():
            values = coder.decode(each.payload, each.begin)
            result[each.begin : each.begin + len(values)] = values
        return result

    @in_turn
    def to_lead(self, array: np.ndarray) -> dict[int, np.ndarray]:
        """Returns, to the worker that leads, the array of each worker by its index.

        The others get their own alone. Each call is followed by one of `from_lead`, by
        which the lead shows that it has read what came, and before the next one of
        which all have read what it sent: a mailbox has room for these two messages.
        Arrays are one-dimensional, of one dtype, and of any size on each worker.

        Cost: one message from each other worker to the lead.
        """
        leads = self.members.lead == self.members.me
        return self._gather(Call.TO_LEAD, array, is_read=leads)

    @in_turn
    def from_lead(self, array: np.ndarray, lead: int) -> np.ndarray | None:
        """Returns the array of the worker that leads, or None if that is lost.

        On the other workers, only the dtype of `array` counts.

        Cost: one message from the lead to each other worker.
        """
        if lead == self.members.me:
            self._publish_next(Call.FROM_LEAD, bytes_of(array))
            return array.reshape(-1)
        key = self._publish_next(Call.FROM_LEAD, NO_BYTES)
        found = self._collect(key, Call.FROM_LEAD, {lead: _ALL})
        return found[lead].payload.view(array.dtype) if lead in found else None

    @in_turn
    def average(
        self,
        vector: np.ndarray,
        weights: Mapping[int, float],
        wire: Wire | None = None,
        begin: int = 0,
    ) -> np.ndarray:
        """Returns an average of this worker's vector and some others'.

        The weight of a worker that is lost meanwhile goes to this worker's own vector.
        Vectors are one-dimensional, of one size and dtype, and begin at element `begin`
        of the model that they are part of.

        Cost: one vector in from each worker that has a weight.
        """
        wire = wire or _exact(vector)
        self._open_door()
        payload, sent = wire.vectors.send(vector)
        key = self._publish_next(Call.AVERAGE, payload, begin)
        others = [each for each in weights if each != self.members.me]
        # In a graph, workers far apart may be some rounds apart: a newer vector will do, if
        # it is of the same part of the model. If not, this is as if its worker were lost.
        wanted = dict.fromkeys(others, _ALL)
        found = self._collect(key, Call.AVERAGE, wanted, newer=True)
        result = vector.astype(np.float64)
        for worker, message in found.items():
            if message.begin != begin:
                continue
            values = wire.coder.decode(message.payload, 0)
            if len(values) == len(vector):
                # Against what the others have read of this worker's vector: so the mean
                # of all vectors does not change if something is lost on the wire.
                result += weights[worker] * (values.astype(np.float64) - sent)
        return result.astype(vector.dtype)

    @in_turn
    def barrier(self, is_quiet: bool = True) -> None:
        """Waits until all have come here, or have ended: not reported if `is_quiet`."""
        with having(self, is_quiet=is_quiet):
            self._gather(Call.BARRIER, NO_BYTES)

    def _open_door(self) -> None:
        """Makes the worker that leads take in one that asks, from the next exchange on.

        The others hear of it from the message that is published next.
        """
        leads = self.members.lead == self.members.me
        if self.rejoin_listener is None or not leads or self.admitted is not None:
            return
        request = self.rejoin_listener.next(self.members.versions)
        if request is None:
            return
        if refusal := self.rejoin_listener.refusal(request):
            self._answer(request, {"refused": refusal}, [])
            return
        self.members.admit(request.worker)
        self._welcome(request.worker)
        self.admitted = request

    def hand_over(
        self, info: Mapping[str, object], arrays: Sequence[np.ndarray]
    ) -> None:
        """Sends the worker that was taken in what it needs to take part.

        Called between exchanges, and before the next one: that waits for the worker.

        Cost: one message, read once.
        """
        request, self.admitted = self.admitted, None
        if request is not None:
            self._reader = request.worker
            place = {
                "next_key": self._next_key,
                "versions": self.members.versions,
                "heard": self._versions,
            }
            self._answer(request, {**info, "exchange": place}, arrays)

    def resume(self, place: Mapping[str, Any]) -> None:
        """Goes on where the worker is that has handed over its state."""
        self.members.versions = list(place["versions"])
        self._next_key = place["next_key"]
        self._last_key = self._next_key - 1
        self._versions = [tuple(each) for each in place["heard"]]
        self._heard = self._versions[-1]


def _exact(vector: np.ndarray) -> Wire:
    return Wire(Coder(vector.dtype))
