"""Attacks on a trained model, and on the data behind a gradient.

`FGSM` and `PGD` change what a model sees at test time; `AdversarialTraining`
trains on what they make of examples. `GradientInversion` searches for the examples behind
an update.
"""

from tfdist import _requires  # noqa: F401  The imports below would fail first.

# isort: split
from tfdist.adversarial.evasion import FGSM, PGD, Evasion
from tfdist.adversarial.examples import adversarial_examples
from tfdist.adversarial.leakage import GradientInversion, LocalSteps, inferred_label
from tfdist.adversarial.training import AdversarialTraining

__all__ = [
    "FGSM",
    "PGD",
    "AdversarialTraining",
    "Evasion",
    "GradientInversion",
    "LocalSteps",
    "adversarial_examples",
    "inferred_label",
]
