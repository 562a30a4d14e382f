"""What workers compute together from what each has put into its mailbox.

It works on any `Transport`, with numpy alone. A worker that is lost leaves: the others go
on without it.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.local_update.door import Door
from tfdist.local_update.in_turn import InTurn, in_turn
from tfdist.local_update.members import Members
from tfdist.local_update.message import LEFT, NOTHING, Message, bytes_of, header_bytes
from tfdist.local_update.reads import Range, Reads
from tfdist.local_update.rejoin import Request, pack
from tfdist.local_update.transport import SilentError, Transport
from tfdist.local_update.wire import Coder, Wire

_log = logging.getLogger("tfdist")

_NONE = np.zeros(0, np.uint8)

_ALL: Range = (0, -1)


class GivenUpError(RuntimeError):
    """The other workers go on without this one."""


class Exchange(InTurn):
    """This worker's part in exchanges between workers.

    All workers call the same methods in the same order: each waits for the one before it,
    also where that runs in the background.

    Args:
        transport: The mailboxes.
        members: Which workers take part.
        names: What to call each worker, by its index.
        timeout: How long a worker may be silent, in seconds. For the log alone.

    Attributes:
        received_bytes: Counted where messages arrive, headers included.
        is_quiet: Whether a worker that has ended is expected, and not reported.
        door: Where workers that were lost ask to come back, while they may; or None.
        admitted: Whom this worker, which leads, has taken in, and not told so yet.
    """

    def __init__(
        self,
        transport: Transport,
        members: Members,
        names: Sequence[str],
        timeout: float,
    ) -> None:
        super().__init__()
        self._transport = transport
        self.members = members
        self._names = names
        self._timeout = timeout
        self._next_key = 0
        self._last_key = NOTHING
        # What was known halfway through each of the last means, when all have heard all.
        self._heard = tuple(members.versions)
        self._versions = [self._heard]
        self.received_bytes = 0
        self.is_quiet = False
        self.door: Door | None = None
        self.admitted: Request | None = None
        self._among = members.present  # Those in the last mean.
        self._reader: int | None = None  # Who is to read what was handed over.

    @in_turn
    def gather(self, array: np.ndarray) -> dict[int, np.ndarray]:
        """Returns the array of each worker that is present, by its index.

        Cost: one message to and from each other worker.
        """
        key = self._publish_next(bytes_of(array))
        found = self._collect(key, dict.fromkeys(self.members.peers, _ALL))
        arrays = {i: each.payload.view(array.dtype) for i, each in found.items()}
        arrays[self.members.me] = array.reshape(-1)
        return dict(sorted(arrays.items()))

    @in_turn
    def mean(self, vector: np.ndarray, wire: Wire | None = None) -> np.ndarray:
        """Returns the mean of all workers' vectors, the same bits on each.

        Each worker owns a part of the vector. It reads that part of all vectors, and then
        the means of the other parts from their owners: the `all_to_all` schedule of
        `tfdist.all_reduce.schedule`. The part of a worker that is lost meanwhile stays as
        it is here, until the next time.

        Cost: in and out of each of n workers, 2(n-1)/n times the bytes of the vector. As
        parts end where blocks of int8 do, less for some workers and more for the last.

        Args:
            vector: One-dimensional, of the same size and dtype on all workers.
            wire: What vectors and means are sent as; None for all their bits.
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
        """Whether workers were lost or came back, as the last two means have shown.

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
        # Who comes back in a mean takes part in the next one.
        present = [i for i in self._among if i in self.members.present]
        coder, place = wire.coder, present.index(self.members.me)
        begin, end = (
            coder.cut(len(vector) * i // len(present)) for i in (place, place + 1)
        )
        payload, sent = wire.vectors.send(vector)
        self._publish(key, payload)
        part = (coder.size(0, begin), coder.size(begin, end))
        others = [each for each in present if each != self.members.me]
        found = self._collect(key, dict.fromkeys(others, part))
        self._heard = tuple(self.members.versions)
        payloads = [each.payload for each in found.values()]
        # A worker that was started again counts from 0: it may have sent something else.
        parts = [coder.decode(each, begin) for each in payloads if len(each) == part[1]]
        mean = np.mean([sent[begin:end], *parts], axis=0, dtype=np.float64)
        mean = mean.astype(vector.dtype)
        result = vector.copy()
        payload, result[begin:end] = wire.means.send(mean, begin)
        self._publish(key + 1, payload, begin)
        # Those that take part alone: another may wait for this worker's next message.
        found = self._collect(key + 1, dict.fromkeys(found, _ALL))
        for each in found.values():
            values = coder.decode(each.payload, each.begin)
            result[each.begin : each.begin + len(values)] = values
        return result

    @in_turn
    def to_lead(self, array: np.ndarray) -> dict[int, np.ndarray]:
        """Returns, to the worker that leads, the array of each worker by its index.

        The others get their own alone. Each call is followed by one of `from_lead`, by
        which the lead shows that it has read what came, and before the next one of which
        all have read what it sent: a mailbox has room for these two messages.

        Cost: one message from each other worker to the lead.

        Args:
            array: One-dimensional; of any size on each worker, and of the same dtype.
        """
        key = self._publish_next(bytes_of(array))
        is_lead = self.members.lead == self.members.me
        senders = self.members.peers if is_lead else []
        found = self._collect(key, dict.fromkeys(senders, _ALL))
        arrays = {i: each.payload.view(array.dtype) for i, each in found.items()}
        arrays[self.members.me] = array.reshape(-1)
        return dict(sorted(arrays.items()))

    @in_turn
    def from_lead(self, array: np.ndarray, lead: int) -> np.ndarray | None:
        """Returns the array of the worker that leads, or None if that is lost.

        Args:
            array: On the lead, what to send; its dtype elsewhere.
            lead: The index of that worker.

        Cost: one message from the lead to each other worker.
        """
        if lead == self.members.me:
            self._publish_next(bytes_of(array))
            return array.reshape(-1)
        key = self._publish_next(_NONE)
        found = self._collect(key, {lead: _ALL})
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

        Cost: one vector in from each worker that has a weight.

        Args:
            vector: One-dimensional, of the same size and dtype on all workers.
            weights: The weight of each vector, by the index of its worker.
            wire: What vectors are sent as; None for all their bits.
            begin: Where they begin in the model that they are part of, in elements.
        """
        wire = wire or _exact(vector)
        self._open_door()
        payload, sent = wire.vectors.send(vector)
        key = self._publish_next(payload, begin)
        others = [each for each in weights if each != self.members.me]
        # In a graph, workers far apart may be some rounds apart: a newer vector will do, if
        # it is of the same part of the model. If not, this is as if its worker were lost.
        found = self._collect(key, dict.fromkeys(others, _ALL), newer=True)
        result = vector.astype(np.float64)
        for worker, message in found.items():
            if message.begin != begin:
                continue
            values = wire.coder.decode(message.payload, 0)
            if len(values) == len(vector):
                # Against what the others have read of this worker's vector: so the mean
                # of all vectors stays what it is, whatever is lost on the wire.
                result += weights[worker] * (values.astype(np.float64) - sent)
        return result.astype(vector.dtype)

    @in_turn
    def part(self) -> None:
        """Waits until all have come here: nobody needs a message of another any more."""
        self.is_quiet = True
        try:
            self.gather(_NONE)
        finally:
            self.is_quiet = False

    def leave(self) -> None:
        """Tells the others to go on without this worker."""
        self.members.lose(self.members.me)
        versions = list(self.members.versions)
        # In the place of the next message: another worker may still read the last one.
        key = LEFT + (self._last_key + 1) % 2
        self._transport.publish(Message(key, 0, versions, _NONE))

    def _open_door(self) -> None:
        """Has the worker that leads take in one that asks, from the next exchange on.

        The others hear of it from the message that is published next.
        """
        leads = self.members.lead == self.members.me
        if self.door is None or not leads or self.admitted is not None:
            return
        request = self.door.next(self.members.versions)
        if request is None:
            return
        if refusal := self.door.refusal(request):
            self._answer(request, {"refused": refusal}, [])
            return
        self.members.admit(request.worker)
        self._welcome(request.worker)
        self.admitted = request

    def hand_over(
        self, info: Mapping[str, object], arrays: Sequence[np.ndarray]
    ) -> None:
        """Gives the worker that was taken in what it needs to take part.

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

    def _answer(
        self, request: Request, info: object, arrays: Sequence[np.ndarray]
    ) -> None:
        versions = list(self.members.versions)
        payload = pack(info, arrays)
        self._transport.publish_aside(
            Message(request.nonce, request.worker, versions, payload)
        )

    def _publish_next(self, payload: np.ndarray, begin: int = 0) -> int:
        key = self._next_key
        self._next_key += 1
        self._publish(key, payload, begin)
        return key

    def _publish(self, key: int, payload: np.ndarray, begin: int = 0) -> None:
        self._check_not_given_up()
        versions = list(self.members.versions)
        self._last_key = key
        self._transport.publish(Message(key, begin, versions, payload))

    def _collect(
        self, key: int, wanted: Mapping[int, Range], newer: bool = False
    ) -> dict[int, Message]:
        """Waits for a message of each of some workers, unless they are lost."""
        reads = Reads(self._transport, key, wanted, self._is_old)
        found: dict[int, Message] = {}
        for worker, result in reads.results(self._notice):
            if isinstance(result, Message):
                self.received_bytes += len(result.payload)
                self.received_bytes += header_bytes(len(self._names))
                self._hear(result)
                if result.key == key or newer:
                    found[worker] = result
            else:
                self._lose(worker, result)
        if self._reader in found:
            # As large as a model and its optimizer: nobody needs it any more.
            self._reader = None
            versions = list(self.members.versions)
            self._transport.publish_aside(Message(NOTHING, 0, versions, _NONE))
        self._check_not_given_up()
        return dict(sorted(found.items()))

    def _check_not_given_up(self) -> None:
        if self.members.is_given_up:
            raise GivenUpError(
                f"the other workers go on without {self._names[self.members.me]}: its fit "
                f"failed, it did not answer for {self._timeout:g} s (peer_timeout), or its "
                "process was started again. Start its process again to have it back: in a "
                "fit that runs, a worker of tfdist.LocalUpdateStrategy takes part from the "
                "next mix on. Others need the whole cluster to be started again; with the "
                "callback keras.callbacks.BackupAndRestore, training resumes from the "
                "chief's backup"
            )

    def _hear(self, message: Message) -> None:
        before = self.members.present
        self.members.hear(message.versions)
        for worker in set(before) - set(self.members.present) - {self.members.me}:
            self._report(worker, "has left")
        for worker in set(self.members.present) - set(before) - {self.members.me}:
            self._welcome(worker)

    def _is_old(self, worker: int, message: Message) -> bool:
        # It says there that it has left. Since then it came back, and has sent nothing yet.
        return (
            message.key >= LEFT
            and message.versions[worker] < self.members.versions[worker]
        )

    def _welcome(self, worker: int) -> None:
        # The session was one with the process that has ended.
        self._transport.forget(worker)
        self._report(worker, "is back")

    def _lose(self, worker: int, why: Exception) -> None:
        if worker not in self.members.present:
            return
        self.members.lose(worker)
        silent = f"has not answered for {self._timeout:g} s (peer_timeout)"
        self._report(worker, silent if isinstance(why, SilentError) else "has ended")

    def _report(self, worker: int, what: str) -> None:
        if not self.is_quiet:
            _log.warning(
                "%s %s: training goes on with %d of %d workers",
                self._names[worker],
                what,
                len(self.members.present),
                len(self._names),
            )

    def _notice(self, workers: Sequence[int], seconds: float) -> None:
        _log.warning(
            "waiting for %s for %.0f s, to mix models. A worker that does not answer at "
            "all is given up after %g s (peer_timeout)",
            ", ".join(self._names[each] for each in workers),
            seconds,
            self._timeout,
        )


def _exact(vector: np.ndarray) -> Wire:
    return Wire(Coder(vector.dtype))
