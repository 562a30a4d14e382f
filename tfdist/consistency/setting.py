"""Policies as text, on command lines and in the environment. Pure."""

from collections.abc import Mapping
from typing import Any

from tf_config import contract
from tfdist.consistency.asynchronous import Asynchronous
from tfdist.consistency.bounded_staleness import BoundedStaleness
from tfdist.consistency.combinations import decides_as
from tfdist.consistency.policy import Consistency
from tfdist.consistency.synchronous import Synchronous


def policy_of(text: str) -> Consistency:
    """Returns the policy that a text names.

    >>> policy_of("bounded:4")
    BoundedStaleness(max_staleness=4)
    >>> policy_of("synchronous:1")
    Synchronous(backup_workers=1, replicas_to_aggregate=None)

    Args:
        text: `asynchronous`, `bounded:STALENESS`, `synchronous` or
            `synchronous:BACKUPS`.

    Raises:
        ValueError: If it names none.
    """
    name, _, argument = text.partition(":")
    if text == contract.ASYNCHRONOUS:
        return Asynchronous()
    if name == contract.BOUNDED and argument.isdecimal():
        return BoundedStaleness(int(argument))
    if text == contract.SYNCHRONOUS:
        return Synchronous()
    if name == contract.SYNCHRONOUS and argument.isdecimal():
        return Synchronous(int(argument))
    raise ValueError(contract.unknown_policy(text))


def setting_of(policy: Any, num_workers: int) -> str:
    """Returns the text that names a policy; its `repr` if none does.

    >>> setting_of(Synchronous(1).for_workers(4), 4)
    'synchronous:1'

    Args:
        policy: The policy, resolved for the number of workers.
        num_workers: The number of workers.
    """
    if policy == Asynchronous():
        return contract.ASYNCHRONOUS
    if decides_as(policy, BoundedStaleness):
        if policy.is_free:
            return contract.ASYNCHRONOUS
        return f"{contract.BOUNDED}:{policy.max_staleness}"
    if isinstance(policy, Synchronous):
        backups = policy.backup_workers
        # The default, or the number that `for_workers` has put in its place.
        if policy.replicas_to_aggregate in (None, num_workers - backups):
            return contract.SYNCHRONOUS + (f":{backups}" if backups else "")
    return repr(policy)


def policy_of_environment(environ: Mapping[str, str]) -> Consistency:
    """Returns the policy that the launcher asks for; `Asynchronous()` if it does not.

    Raises:
        ValueError: If its variable names no policy.
    """
    text = environ.get(contract.CONSISTENCY)
    if text is None:
        return Asynchronous()
    try:
        return policy_of(text)
    except ValueError as error:
        raise ValueError(f"{contract.CONSISTENCY}: {error}") from None
