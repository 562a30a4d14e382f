"""When models are mixed: after every H local steps, in fragments, and at the end."""

from collections.abc import Sequence


class Rounds:
    """Counts local steps, and says which fragment of the model to mix after each.

    A round has H steps. Of F fragments, number f is mixed after the first (f+1)H/F of
    them, rounded down: each once per round, H steps after its last time, and one at a
    time. The last one is mixed where the round ends, as the whole model is where it is
    one fragment. `local_steps` is H, and `fragments` F, at most H.

    Source: Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv
    2501.18512: fragment p is sent every H steps, from an offset of its own. Equal distances
    between offsets give each mix as much time as any other.

    >>> rounds = Rounds(4, fragments=2)
    >>> [rounds.step() for _ in range(7)]
    [None, 0, None, 1, None, 0, None]
    >>> rounds.close(), rounds.close()
    ([0, 1], [])
    """

    def __init__(self, local_steps: int, fragments: int = 1) -> None:
        self._local_steps = local_steps
        self._ends = [(f + 1) * local_steps // fragments for f in range(fragments)]
        self._step = 0
        self._since = [0] * fragments

    def step(self) -> int | None:
        """Counts a step, and returns the fragment to mix now, if there is one."""
        self._step = self._step % self._local_steps + 1
        self._since = [steps + 1 for steps in self._since]
        if self._step not in self._ends:
            return None
        fragment = self._ends.index(self._step)
        self._since[fragment] = 0
        return fragment

    @property
    def is_due(self) -> bool:
        """Whether a fragment is mixed after the next step."""
        return self._step % self._local_steps + 1 in self._ends

    def close(self) -> list[int]:
        """Ends the round, and returns the fragments with steps since their last mix."""
        since, self._since = self._since, [0] * len(self._since)
        self._step = 0
        return [fragment for fragment, steps in enumerate(since) if steps]

    @property
    def place(self) -> list[int]:
        """Where in a round this is: its step, and each fragment's steps since its mix.

        >>> rounds, other = Rounds(4), Rounds(4)
        >>> _ = rounds.step(), rounds.step(), rounds.step()
        >>> other.place = rounds.place
        >>> rounds.step(), other.step(), other.place
        (0, 0, [4, 0])
        """
        return [self._step, *self._since]

    @place.setter
    def place(self, place: Sequence[int]) -> None:
        self._step, *self._since = place
