"""Reports of how several workers' changes of each variable combine. Pure."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

_log = logging.getLogger("tfdist")

_SHOWN = 5


@dataclass(frozen=True)
class ExchangeReport:
    """The effect of `exchange=ExchangeEvery(k)` on the variables that steps have written.

    Attributes:
        steps: The most steps between two exchanges.
        added: Variables to which each worker adds its changes: no update is lost.
        set: Variables that each worker sets to the value that it has computed from their
            own: the last writer wins. So they have the steps of one worker.
        in_each_step: Variables that still move in each step: rows that it looks up, and
            those used in a branch, a loop or a `tf.function`.
    """

    steps: int
    added: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    in_each_step: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.steps == 1:
            return "exchange=ExchangeEvery(1): each step reads and writes the variables on the ps"
        lines = [f"exchange=ExchangeEvery({self.steps}):"]
        for title, names in (
            ("added, each worker's changes", self.added),
            ("set, the last worker's value", self.set),
            ("in each step", self.in_each_step),
        ):
            lines.append(f"  {title}: {', '.join(names) or 'none'}")
        return "\n".join(lines)


class Exchanges:
    """Notes the writes of a strategy's steps, and warns of updates that they may lose.

    Args:
        workers: The number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        # Dicts as sets of names: these keep the order.
        self._names: dict[str, dict[str, None]] = {}
        self._warned = False

    def note(
        self,
        steps: int,
        added: Iterable[str],
        set_: Iterable[str],
        in_each_step: Iterable[str],
        slots: Iterable[str],
    ) -> None:
        """Notes the variables of a step.

        Args:
            steps: The most steps between two exchanges.
            added: As in `ExchangeReport`.
            set_: As `set` there.
            in_each_step: As there.
            slots: The optimizer's slots among them; an average may be one worker's.
        """
        kinds = {"added": added, "set": list(set_), "in_each_step": in_each_step}
        for kind, names in kinds.items():
            self._names.setdefault(kind, {}).update(dict.fromkeys(names))
        # An optimizer's averages, such as Adam's, bear being those of one worker.
        others = [each for each in kinds["set"] if each not in set(slots)]
        if others and self._workers > 1 and not self._warned:
            self._warned = True
            _log.warning("%s", _warning(steps, others))

    def report(self, steps: int) -> ExchangeReport:
        """Returns the report of all noted variables."""
        return ExchangeReport(
            steps, **{kind: tuple(names) for kind, names in self._names.items()}
        )


def _warning(steps: int, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"exchange=ExchangeEvery({steps}): a step sets {', '.join(names[:_SHOWN])}{more} to a "
        "value computed from its own, and each worker computes from its own copy. So the "
        "last worker's value replaces what others have written since. A moving average "
        "becomes that of one worker; a counter would lose counts: count with "
        "variable.assign_add(number), where the number does not depend on the variable, "
        "or use ExchangeEvery(1). strategy.exchange_report() lists all variables"
    )
