"""Mixes of a model's fragments: their timing, and the steps that run meanwhile."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfdist.local_update.arguments import described
from tfdist.local_update.exchange import Exchange
from tfdist.local_update.fragment import Fragment, one_each
from tfdist.local_update.mix_schedule import MixSchedule, after_overlap, balanced_groups
from tfdist.local_update.mixing import Mixing
from tfdist.local_update.model_vector import ModelVector


@dataclass(frozen=True)
class MixSettings:
    """Arguments of a `LocalUpdateStrategy` that say how models are mixed; see there."""

    local_steps: int
    mixing: Mixing
    outer_optimizer: keras.optimizers.Optimizer | None = None
    wire_dtype: str | None = None
    overlap: bool = False
    fragments: int = 1

    def described(self, present: Sequence[int]) -> dict[str, Any]:
        """Returns the settings, comparable with those of other workers."""
        outer = self.outer_optimizer
        return {
            "local_steps": self.local_steps,
            "mixing": described(self.mixing, present),
            "outer_optimizer": outer and [type(outer).__name__, outer.get_config()],
            "wire_dtype": self.wire_dtype,
            "overlap": self.overlap,
            "fragments": self.fragments,
        }


class Mix:
    """Mixes the models of the workers: after each round of local steps, and at the end.

    With `overlap`, the mix of a fragment begins at its step of the round, and what it has
    made is taken over where that of the next fragment begins, H/F steps later. So one
    fragment travels at a time, and the longest time that leaves: in Streaming DiLoCo (arXiv
    2501.18512) this delay is a number of its own, τ. What a fragment has learned meanwhile
    is kept whole (`mix_schedule.after_overlap`), rather than blended with the mix as there: so
    the mean of all models is kept, and one fragment is what overlap is without fragments.

    Attributes:
        vector: The model, whole.
        fragments: Its parts.
        steps: How many steps of this epoch are done.
        has_trained: Whether this worker had rows in one of them.
        hand_over: Called to give a worker that comes back the state of this one, right
            after a mix, when none is in flight; with how many batches were taken for
            steps that are not counted yet. None outside of `fit`.

    Raises:
        ValueError: If the model has fewer variables than fragments.
    """

    def __init__(
        self, model: keras.Model, exchange: Exchange, settings: MixSettings
    ) -> None:
        fragments = settings.fragments
        self._exchange = exchange
        self._overlap = settings.overlap
        self._rounds = MixSchedule(settings.local_steps, fragments)
        # The fragment that is being mixed, as it was then, and what the mix makes of it.
        self._under_way: tuple[Fragment, np.ndarray, Future[np.ndarray]] | None = None
        self.steps = 0
        self.has_trained = False
        self.hand_over: Callable[[int], None] | None = None
        self.vector = ModelVector(model)
        groups = balanced_groups(self.vector.sizes, fragments) if fragments > 1 else []
        parts = [self.vector.part(group) for group in groups] or [self.vector]
        begins = [0, *np.cumsum([sum(part.sizes) for part in parts]).tolist()][:-1]
        optimizers = one_each(settings.outer_optimizer, fragments)
        mixing, narrow = settings.mixing, settings.wire_dtype
        self.fragments = [
            Fragment(part, exchange, mixing, optimizer, narrow, begin)
            for part, optimizer, begin in zip(parts, optimizers, begins, strict=True)
        ]

    def begin(self) -> None:
        """Starts from the model as it is now, the same on all workers."""
        for fragment in self.fragments:
            fragment.begin()

    def begin_epoch(self) -> None:
        """Counts steps from 0 again; rounds continue."""
        self.steps, self.has_trained = 0, False

    def step_done(self, of_epoch: bool = True) -> None:
        """Counts a local step, of the epoch or not; mixes the fragment that is due."""
        # Before the next mix begins: that waits for whom the last one has let in.
        if self._overlap and self._rounds.is_due:
            self._end_overlap()
        self._welcome(uncounted=int(of_epoch))
        self.steps += of_epoch
        due = self._rounds.step()
        if due is None:
            return
        fragment = self.fragments[due]
        if self._overlap:
            self._begin_overlap(fragment)
        else:
            self._mix(fragment)
            self._welcome()

    def drain(self) -> None:
        """Waits for the exchange that is in flight if a worker may come back by it.

        Called before this worker exchanges anything else.
        """
        if self.hand_over is not None:
            # A mix in the background keeps its turn until it has ended.
            with self._exchange.turn:
                pass
            self._welcome()

    def _welcome(self, uncounted: int = 0) -> None:
        """Hands a worker that was let in the state of this one, which led then.

        `uncounted` batches were taken for steps that are not counted yet.
        """
        if self._exchange.admitted is not None and self.hand_over is not None:
            self._end_overlap()
            self.hand_over(uncounted)

    @property
    def state(self) -> tuple[dict[str, list[int]], list[np.ndarray]]:
        """Plain data and arrays that another worker needs to mix the same model."""
        places = {
            "rounds": self._rounds.place,
            "mixes": [fragment.mixes for fragment in self.fragments],
        }
        arrays = [fragment.hand_over() for fragment in self.fragments]
        return places, list(itertools.chain.from_iterable(arrays))

    @state.setter
    def state(self, state: tuple[dict[str, list[int]], list[np.ndarray]]) -> None:
        places, arrays = state
        self._rounds.place = places["rounds"]
        rest = iter(arrays)
        for fragment, mixes in zip(self.fragments, places["mixes"], strict=True):
            own = list(itertools.islice(rest, len(fragment.hand_over())))
            fragment.take_over(mixes, own)

    def finish(self) -> None:
        """Mixes every fragment with local steps since its last mix, and waits for all.

        Nobody comes back any more: this `fit` is over.
        """
        self.drain()
        self.hand_over = None
        self._exchange.rejoin_listener = None
        self._end_overlap()
        for index in self._rounds.close():
            self._mix(self.fragments[index])

    def _mix(self, fragment: Fragment) -> None:
        vector = fragment.vector
        vector.write(fragment.mixed(vector.read(), self._agree))

    def _begin_overlap(self, fragment: Fragment) -> None:
        snapshot = fragment.vector.read()
        mixed = self._exchange.in_background(
            lambda: fragment.mixed(snapshot, self._agree)
        )
        self._under_way = fragment, snapshot, mixed

    def _end_overlap(self) -> None:
        """Waits for the mix in flight, if there is one, and takes its result."""
        if self._under_way is None:
            return
        (fragment, snapshot, mixed), self._under_way = self._under_way, None
        vector = fragment.vector
        vector.write(
            after_overlap(vector.read(), snapshot, mixed.result(), vector.num_trainable)
        )

    def _agree(self) -> None:
        """Averages the states that workers compare models with, of all fragments.

        A worker that is lost in a mix leaves the others with different parts. Models become
        equal in the next mix; what they are compared with does not. All know of the loss
        one mix later, which is that of another fragment.
        """
        states = [fragment.state for fragment in self.fragments]
        whole = np.concatenate(states)
        if not len(whole):
            return
        ends = np.cumsum([len(state) for state in states]).tolist()
        parts = np.split(self._exchange.mean_again(whole), ends[:-1])
        for fragment, part in zip(self.fragments, parts, strict=True):
            fragment.state = part
