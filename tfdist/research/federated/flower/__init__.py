"""Real clients on Flower (`flwr`): our server as its strategy, our client as its `ClientApp`.

Flower brings TLS, authentication and devices; the model, the data and the algorithm are those
of `Simulation`. Its names import `flwr` when they are first used.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Tools do not run `__getattr__`.
    from tfdist.research.federated.flower.averaging_strategy import AveragingStrategy
    from tfdist.research.federated.flower.client import client_app
    from tfdist.research.federated.flower.server import server_app

_ON_FLOWER = {
    "AveragingStrategy": "tfdist.research.federated.flower.averaging_strategy",
    "client_app": "tfdist.research.federated.flower.client",
    "server_app": "tfdist.research.federated.flower.server",
}

__all__ = ["AveragingStrategy", "client_app", "server_app"]


def __getattr__(name: str) -> Any:
    if name not in _ON_FLOWER:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name
        )
    if importlib.util.find_spec("flwr") is None:
        raise ImportError(
            f"tfdist.research.federated.flower.{name} needs Flower, which is not installed: "
            "pip install 'flwr>=1.41' (the extra `flower`)"
        )
    value = getattr(importlib.import_module(_ON_FLOWER[name]), name)
    globals()[name] = value  # Python finds it without this function from now on.
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
