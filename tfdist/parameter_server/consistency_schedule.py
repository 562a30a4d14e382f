"""Another policy of consistency from some epoch on."""

from collections.abc import Mapping

import keras

from tfdist._support.types import Logs
from tfdist.consistency.numbers import count_of
from tfdist.consistency.policy import Consistency, check_consistency


class ConsistencySchedule(keras.callbacks.Callback):
    """Sets the strategy's `consistency` when an epoch begins.

    For example in step first and loose later, or the other way around:

        model.fit(x, y, epochs=10, callbacks=[
            tfdist.ConsistencySchedule(
                {0: tfdist.Synchronous(), 3: tfdist.BoundedStaleness(8)}
            )
        ])

    Args:
        policies: The policy from each of these epochs on, counted from 0 as `fit` counts
            them. Before the first, the strategy's own.

    Raises:
        TypeError: If an epoch is not an integer, or a policy is not one.
        ValueError: If an epoch is negative, or there is none.
    """

    def __init__(self, policies: Mapping[int, Consistency]) -> None:
        super().__init__()
        if not isinstance(policies, Mapping) or not policies:
            raise (ValueError if policies == {} else TypeError)(
                "ConsistencySchedule takes the policy of some epochs, for example "
                "{0: tfdist.Synchronous(), 3: tfdist.BoundedStaleness(8)}; received "
                f"{policies!r}"
            )
        for policy in policies.values():
            check_consistency(policy)
        self._current: Consistency | None = None
        self._policies = {
            count_of("ConsistencySchedule", "an epoch", epoch, least=0): policy
            for epoch, policy in policies.items()
        }

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Sets the policy of the epoch.

        Raises:
            TypeError: If the model's strategy has no such knob.
        """
        begun = [each for each in self._policies if each <= epoch]
        if not begun:
            return
        strategy = self.model.distribute_strategy
        if not hasattr(strategy, "consistency"):
            raise TypeError(
                "ConsistencySchedule is for a model of a tfdist.ParameterServerStrategy; "
                f"this one is of {type(strategy).__name__}"
            )
        policy = self._policies[max(begun)]
        # A continued run begins in the middle: the latest one counts.
        if self._current is not policy:
            strategy.consistency = policy
            self._current = policy

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Begins anew."""
        self._current = None
