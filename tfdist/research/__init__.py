"""Distributed learning beyond the core: federated, pipelined, placed, split, simulated.

These packages may change in any release, and nothing in the core imports them. As in
`tfdist` itself, each public name imports its module when it is first used.
"""

from typing import Any

from tfdist._support.names import PublicNames

_NAMES = PublicNames(__file__)

__all__ = sorted(_NAMES.modules)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(
            f"module 'tfdist.research' has no attribute {name!r}", name=name
        )
    globals()[name] = _NAMES.import_value(name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_NAMES.packages})
