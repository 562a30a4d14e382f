"""Sums of clients' vectors of which the server sees the sum alone. Pure.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017: each pair of clients agrees on a mask, which one adds and the other subtracts, and
each client adds a mask of its own. Seeds are shared among all clients (`shamir`), so that
the masks of those that vanish can be removed.

What is here: rounds 0 (keys), 1 (shares), 2 (masked vectors) and 4 (unmasking) of figure 4.
What is not: round 3 with its signatures, and the public keys' certificates.

It holds for a server that is curious, but follows the protocol and passes messages on as
they are, together with fewer clients than the threshold. A server that lies about who
vanished, or makes up clients, can learn single vectors: that takes the parts that are not
here. A client can spoil the sum, or send a vector as large as it likes.

Cost for n clients and d numbers: a client computes O(n² + n d), and sends 4 d bytes and
two shares to each other client; the server computes O(n² d) if many vanish.
"""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from tfdist.federated import masks, shamir
from tfdist.federated.aggregation import Aggregation


@dataclasses.dataclass(frozen=True)
class PublicKeys:
    """What a client tells everyone: one key for masks, one for messages to it."""

    masking: bytes
    sealing: bytes


@dataclasses.dataclass(frozen=True)
class Reveal:
    """A client's shares of what the server may learn, by the client they belong to.

    Never both for one client: with both, the server could unmask its vector.
    """

    own_seeds: Mapping[int, bytes]
    masking_keys: Mapping[int, bytes]


class SecureClient:
    """One client in one sum. Its methods are called once each, in their order.

    Args:
        number: Which client this is, 0 or more.
        threshold: How many clients unmask the sum; more than could ever collude.

    Raises:
        ValueError: If the threshold is below 2.
    """

    def __init__(self, number: int, threshold: int) -> None:
        _check_threshold(threshold)
        self._number = number
        self._threshold = threshold
        self._masking_key = masks.new_key()
        self._sealing_key = masks.new_key()
        self._own_seed = masks.new_key()
        self._keys: dict[int, PublicKeys] = {}
        self._own_shares = b""
        self._sealed: dict[int, bytes] | None = None
        self._has_masked = self._has_revealed = False

    def public_keys(self) -> PublicKeys:
        """Round 0: returns what everyone needs to know."""
        return PublicKeys(
            masks.public_key(self._masking_key), masks.public_key(self._sealing_key)
        )

    def shares(self, keys: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Round 1: returns sealed shares for each other client.

        Args:
            keys: Of all clients that are there, this one included.

        Raises:
            ValueError: If they are fewer than the threshold, two have the same keys, or
                this one's are not among them.
        """
        if self._keys:
            raise ValueError("a client shares once: begin a new sum with new clients")
        _check_enough("clients", keys, self._threshold)
        if keys.get(self._number) != self.public_keys():
            raise ValueError(f"the keys of client {self._number} are not its own")
        if len({each.masking for each in keys.values()}) < len(keys):
            raise ValueError("two clients have the same key: a client made them up")
        self._keys = dict(keys)
        holders = sorted(keys)
        seed = shamir.split(self._own_seed, holders, self._threshold)
        key = shamir.split(self._masking_key, holders, self._threshold)
        self._own_shares = seed[self._number] + key[self._number]
        return {
            other: masks.seal(
                self._seal_seed(other),
                seed[other] + key[other],
                _context(self._number, other),
            )
            for other in holders
            if other != self._number
        }

    def masked(self, values: np.ndarray, sealed: Mapping[int, bytes]) -> np.ndarray:
        """Round 2: returns the vector under its masks.

        Args:
            values: uint32 of `FixedPoint.encode`, (length,).
            sealed: The shares for this client, by sender: those clients are still there.

        Raises:
            ValueError: If too few are left, or a sender is unknown.
        """
        if self._has_masked:
            raise ValueError(
                "a client masks one vector: two would tell their difference"
            )
        if values.dtype != np.uint32 or values.ndim != 1:
            raise ValueError(
                "masks are added to uint32 of shape (length,), as FixedPoint.encode "
                f"returns them; received {values.dtype} of shape {values.shape}"
            )
        _check_known(sealed, self._keys)
        _check_enough("clients", {*sealed, self._number}, self._threshold)
        self._sealed, self._has_masked = dict(sealed), True
        total = values + masks.mask(self._own_seed, len(values))
        for other in sealed:
            seed = _masking_seed(self._masking_key, self._keys[other])
            total = _added(total, masks.mask(seed, len(values)), self._number < other)
        return total

    def reveal(self, survivors: Collection[int]) -> Reveal:
        """Round 4: returns shares of the survivors' seeds and of the others' keys.

        Args:
            survivors: Those whose masked vector the server has.

        Raises:
            ValueError: If too few survived, one is unknown, a share was changed, or the
                server asks again.
        """
        if self._sealed is None or self._has_revealed:
            raise ValueError(
                "a client reveals shares once, after its vector: answers for two sets of "
                "survivors would unmask single vectors"
            )
        everyone = {*self._sealed, self._number}
        _check_known(survivors, everyone)
        _check_enough("survivors", survivors, self._threshold)
        self._has_revealed = True
        seeds, keys = {}, {}
        for other in everyone:
            shares = self._own_shares
            if other != self._number:
                context = _context(other, self._number)
                shares = masks.unseal(
                    self._seal_seed(other), self._sealed[other], context
                )
            if other in survivors:
                seeds[other] = shares[: shamir.SHARE_BYTES]
            else:
                keys[other] = shares[shamir.SHARE_BYTES :]
        return Reveal(seeds, keys)

    def _seal_seed(self, other: int) -> bytes:
        return masks.agree(self._sealing_key, self._keys[other].sealing, b"seal")


def unmasked_sum(
    masked: Mapping[int, np.ndarray],
    reveals: Mapping[int, Reveal],
    keys: Mapping[int, PublicKeys],
    threshold: int,
) -> np.ndarray:
    """Returns the sum of the vectors of all survivors, and nothing else about them.

    Args:
        masked: The vectors of round 2, by survivor.
        reveals: The answers of round 4, by client.
        keys: Of those whose shares were passed on in round 1.
        threshold: That of the clients.

    Returns:
        uint32, (length,): the sum modulo 2^32, to the bit.

    Raises:
        ValueError: If fewer clients than the threshold answered, or a recovered key does
            not fit.
    """
    _check_threshold(threshold)
    _check_known(masked, keys)
    _check_enough("vectors", masked, threshold)
    _check_enough("answers", reveals, threshold)
    _check_known(reveals, keys)
    total = np.asarray(np.sum(list(masked.values()), axis=0, dtype=np.uint32))
    for survivor in masked:
        shares = {
            each: answer.own_seeds[survivor]
            for each, answer in reveals.items()
            if survivor in answer.own_seeds
        }
        seed = shamir.combine(shares, threshold, masks.SEED_BYTES)
        total = total - masks.mask(seed, len(total))
    for gone in keys.keys() - masked.keys():
        shares = {
            each: answer.masking_keys[gone]
            for each, answer in reveals.items()
            if gone in answer.masking_keys
        }
        key = shamir.combine(shares, threshold, masks.SEED_BYTES)
        if masks.public_key(key) != keys[gone].masking:
            raise ValueError(f"the shares of client {gone}'s key are not of its key")
        for survivor in masked:
            seed = _masking_seed(key, keys[survivor])
            total = _added(total, masks.mask(seed, len(total)), survivor > gone)
    return total


def default_threshold(clients: int) -> int:
    """Returns the fewest that are more than two thirds of the clients."""
    return 2 * clients // 3 + 1


def check_rule(rule: Aggregation) -> None:
    """Checks that a rule can do with the sum, which is all that the server sees.

    Raises:
        ValueError: If it has to see single updates.
    """
    if rule.sees_single_updates:
        raise ValueError(
            f"{rule} compares the updates of single clients, which secure aggregation "
            "hides: the server sees their sum alone. Choose one: WeightedMean() or "
            "NormClipping(max_norm), by which clients clip themselves, under secure "
            "aggregation; or this rule without it"
        )


def _added(total: np.ndarray, mask: np.ndarray, is_plus: bool) -> np.ndarray:
    return total + mask if is_plus else total - mask


def _masking_seed(own: bytes, other: PublicKeys) -> bytes:
    return masks.agree(own, other.masking, b"mask")


def _context(sender: int, receiver: int) -> bytes:
    return f"{sender} to {receiver}".encode()


def _check_threshold(threshold: int) -> None:
    if threshold < 2:
        raise ValueError(
            f"a threshold is 2 or more, or one client is its own sum; received {threshold}"
        )


def _check_enough(what: str, found: Collection[int], threshold: int) -> None:
    if len(found) < threshold:
        raise ValueError(
            f"a sum needs {what} of {threshold} clients, its threshold; received "
            f"{len(found)}: {sorted(found)}. Repeat the round with other clients"
        )


def _check_known(found: Collection[int], known: Collection[int]) -> None:
    if strangers := sorted(set(found) - set(known)):
        raise ValueError(
            f"the clients of this sum are {sorted(known)}; received {strangers}"
        )
