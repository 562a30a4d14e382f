"""Which algorithms real clients can follow. Pure."""

from tfdist.federated.averaging import FederatedAveraging


def check_averaging(averaging: FederatedAveraging) -> None:
    """Checks that an algorithm needs nothing that a simulation alone has.

    Raises:
        ValueError: If it does.
    """
    if averaging.secure is not None:
        raise ValueError(
            "secure sums need rounds of keys and shares between clients, which Simulation "
            f"runs and Flower's messages do not carry here; received {averaging.secure}. "
            "Leave out secure"
        )
