"""Rules for how rows come and go, as plain data in the config of a layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.embedding.growing.admission import (
    Admission,
    CountFilter,
    ProbabilityFilter,
)
from tfdist.embedding.growing.eviction import (
    Eviction,
    EvictRare,
    EvictSmall,
    EvictUnseen,
)

_RULES = {
    rule.__name__: rule
    for rule in (CountFilter, ProbabilityFilter, EvictUnseen, EvictRare, EvictSmall)
}


@dataclass(frozen=True)
class RowRules:
    """The rules by which ids get rows and lose them.

    Attributes:
        admission: The rule for which ids get a row.
        eviction: The rules for which rows `evict` removes.
        follows: Whether it is known of each row when and how often it was looked up.
    """

    admission: Admission = None
    eviction: Sequence[Eviction] = ()
    follows: bool = False


def config_of(rule: Any) -> dict[str, Any] | None:
    """Returns an admission or eviction as a dict."""
    return None if rule is None else {"rule": type(rule).__name__, **vars(rule)}


def rule_of(config: Any) -> Any:
    """Returns the argument of `config_of`; a rule, or None, as it is."""
    if not isinstance(config, Mapping):
        return config
    arguments = dict(config)
    return _RULES[arguments.pop("rule")](**arguments)
