"""The mean of all models."""

import dataclasses
from collections.abc import Collection

from tfdist.mixing.mixing import check_present


@dataclasses.dataclass(frozen=True)
class Mean:
    """Each participant ends with the mean of the models of all: local SGD.

    With one local step of SGD between rounds, this is synchronous training to rounding
    (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019). Cost: an
    all-reduce of the model per round, 2(n-1)/n times its bytes in and out of each of n
    participants.
    """

    def on(self, participants: int) -> "Mean":
        """Returns this policy: it is the same for any number of participants.

        Raises:
            ValueError: If there are no participants.
        """
        if participants < 1:
            raise ValueError(f"a mean is over 1 or more; received {participants=}")
        return self

    def weights(
        self, participant: int, round_index: int, present: Collection[int]
    ) -> dict[int, float]:
        """Returns equal weights of all that are present.

        Raises:
            ValueError: If the participant is not present.
        """
        check_present(participant, present)
        return {each: 1 / len(present) for each in sorted(present)}
