"""Sources whose examples workers read themselves, so that none crosses the chief.

The names of modules that need TensorFlow, or a table, import it when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfdist.data.errors import SourceError

if TYPE_CHECKING:
    from tfdist.data.leased import LeasedDataset
    from tfdist.data.pipeline_report import PipelineReport
    from tfdist.data.sources import from_files, from_source

_ON_FIRST_USE = {
    "LeasedDataset": "tfdist.data.leased",
    "PipelineReport": "tfdist.data.pipeline_report",
    "from_files": "tfdist.data.sources",
    "from_source": "tfdist.data.sources",
}

__all__ = [
    "LeasedDataset",
    "PipelineReport",
    "SourceError",
    "from_files",
    "from_source",
]


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'tfdist.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_ON_FIRST_USE[name]), name)
