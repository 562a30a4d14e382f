"""Membership of workers, as each one knows it, and how that knowledge spreads.

Each worker has a version: 0 at first, odd while it has left, even again when it is back.
Every message carries the versions that its sender knows, and the larger one is the news.
So workers that have heard the same messages know the same, in whichever order.
"""

from collections.abc import Sequence


class Members:
    """This worker's knowledge of all workers: `versions` has one entry for each.

    >>> members = Members(0, 3)
    >>> members.lose(1)
    >>> members.present
    [0, 2]
    >>> members.hear([0, 2, 0])
    >>> members.present
    [0, 1, 2]
    """

    def __init__(self, me: int, workers: int) -> None:
        self.me = me
        self.versions = [0] * workers

    @property
    def present(self) -> list[int]:
        """The workers that take part, in ascending order."""
        return [i for i, version in enumerate(self.versions) if version % 2 == 0]

    @property
    def peers(self) -> list[int]:
        """The workers that take part, except this one."""
        return [each for each in self.present if each != self.me]

    @property
    def lead(self) -> int:
        """The worker whose state counts where all need the same one."""
        return self.present[0]

    @property
    def is_given_up(self) -> bool:
        """True if the others continue without this worker."""
        return self.me not in self.present

    def lose(self, worker: int) -> None:
        """Notes that a worker has left."""
        self.versions[worker] |= 1

    def admit(self, worker: int) -> None:
        """Notes that a worker is back."""
        self.versions[worker] += self.versions[worker] % 2

    def hear(self, versions: Sequence[int]) -> None:
        """Adopts the newer knowledge of another worker."""
        self.versions = [
            max(mine, theirs)
            for mine, theirs in zip(self.versions, versions, strict=True)
        ]
