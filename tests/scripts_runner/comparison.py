"""Compares what a script came to under a strategy with plain Keras."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .job import SCRIPTS, SYNCHRONOUS, Outcome

ROUNDING = 1e-3  # of the largest weight of a tensor, or of a metric
SMALL = 1e-3  # a tensor whose weights are all smaller is compared as if of this size


def all_scripts(folder: Path = SCRIPTS) -> list[str]:
    """Returns the names of all scripts in a folder, in alphabetical order."""
    return sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))


@dataclass(frozen=True)
class Script:
    """What the file of a script says of it.

    Attributes:
        name: Of the file.
        same_weights: Whether workers in step end with plain Keras's weights.
        within: How far its metrics may lie from plain Keras's.
        refused: What an error says that is due, by strategy.
    """

    name: str
    same_weights: bool
    within: float
    refused: Mapping[str, str]

    @classmethod
    def read(cls, name: str, folder: Path = SCRIPTS) -> "Script":
        """Reads it from its folder, without importing it."""
        source = (folder / f"{name}.py").read_text()
        said = {}
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                said[node.targets[0].id] = node.value
        return cls(
            name,
            ast.literal_eval(said["SAME_WEIGHTS"]),
            ast.literal_eval(said["WITHIN"]),
            ast.literal_eval(said["REFUSED"]) if "REFUSED" in said else {},
        )


@dataclass(frozen=True)
class Row:
    """A script under a strategy, beside plain Keras.

    Attributes:
        script: The script.
        strategy: The strategy.
        outcome: Of the script under the strategy.
        plain: Of the script in plain Keras.
    """

    script: Script
    strategy: str
    outcome: Outcome
    plain: Outcome

    @property
    def difference(self) -> float | None:
        """The largest of any weight, where they are to be equal to rounding.

        Relative to the largest weight of the same tensor.
        """
        to_compare = self.script.same_weights and self.strategy in SYNCHRONOUS
        if not to_compare or not self.outcome.weights:
            return None
        pairs = zip(self.outcome.weights[0], self.plain.weights[0], strict=True)
        return max((_difference(a, b) for a, b in pairs), default=0.0)

    @property
    def why_not(self) -> str:
        """What is wrong with it; "" if it is as good as plain Keras, or refused as due."""
        due = self.script.refused.get(self.strategy)
        outcome = self.outcome
        if self.plain.error:
            return f"fails in plain Keras: {self.plain.error}"
        if due is not None:
            if outcome.refused and re.search(due, outcome.error, re.S):
                return ""
            return f"is to be refused with {due!r}, and {outcome.error or 'trains'}"
        if outcome.error:
            return f"{'refused, undue: ' * outcome.refused}{outcome.error}"
        return self._what_differs()

    def _what_differs(self) -> str:
        first, *others = self.outcome.weights
        for other in others:
            if not all(map(np.array_equal, first, other)):
                return "the workers end with different weights"
        difference = self.difference
        if difference is not None and not difference <= ROUNDING:
            return f"weights differ from plain Keras's by {difference:.1e}"
        for name, plain in self.plain.metrics.items():
            value = self.outcome.metrics[name]
            allowed = self.script.within
            if difference is not None:
                allowed = ROUNDING * max(abs(plain), 1.0)
            if not abs(value - plain) <= allowed:
                return f"{name} is {value:.4g}, in plain Keras {plain:.4g}"
        return ""


def _difference(weights: np.ndarray, plain: np.ndarray) -> float:
    if weights.shape != plain.shape:
        return np.inf
    if weights.size == 0 or weights.dtype.kind not in "fiu":
        return 0.0
    weights, plain = weights.astype("float64"), plain.astype("float64")
    return float(np.abs(weights - plain).max() / max(np.abs(plain).max(), SMALL))
