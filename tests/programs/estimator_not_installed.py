"""Import the Estimator where tensorflow-estimator is not installed."""

import importlib.metadata

real = importlib.metadata.version


def version(name):
    if name == "tensorflow-estimator":
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)


importlib.metadata.version = version

import tfdist  # noqa: E402, F401 - which must not need it

try:
    from tfdist import estimator  # noqa: F401
except ImportError as error:
    print(error)
