"""Secrets in shares, of which some number is needed. Pure.

Shamir, "How to share a secret", Communications of the ACM 1979: the secret is the value at 0
of a random polynomial, whose values elsewhere are the shares. Fewer shares than needed say
nothing about it. Arithmetic is modulo a Mersenne prime, and not in constant time.
"""

import secrets
from collections.abc import Mapping

PRIME = 2**521 - 1
SHARE_BYTES = 66


def split(secret: bytes, holders: list[int], threshold: int) -> dict[int, bytes]:
    """Returns a share for each holder.

    Args:
        secret: At most 64 bytes.
        holders: Numbers, 0 or more, each of them once.
        threshold: How many shares are needed, 1 to the number of holders.

    Raises:
        ValueError: If the secret is too long, or the threshold cannot be reached.
    """
    if len(secret) > 64:
        raise ValueError(f"a secret has at most 64 bytes; received {len(secret)}")
    if not 1 <= threshold <= len(set(holders)) == len(holders) or min(holders) < 0:
        raise ValueError(
            "there are 1 or more different holders, and a threshold up to their number; "
            f"received {threshold=} for {holders}"
        )
    polynomial = [int.from_bytes(secret, "big")]
    polynomial += [secrets.randbelow(PRIME) for _ in range(threshold - 1)]

    def value(at: int) -> int:
        total = 0
        for coefficient in reversed(polynomial):
            total = (total * at + coefficient) % PRIME
        return total

    # Holder 0 must not have the value at 0, which is the secret.
    return {each: value(each + 1).to_bytes(SHARE_BYTES, "big") for each in holders}


def combine(shares: Mapping[int, bytes], threshold: int, length: int) -> bytes:
    """Returns the secret.

    Args:
        shares: By holder.
        threshold: How many were needed when the secret was split.
        length: The bytes of the secret.

    Raises:
        ValueError: If there are fewer shares than needed, or they do not fit each other.
    """
    if len(shares) < threshold:
        raise ValueError(
            f"{threshold} shares are needed to recover a secret; received {len(shares)}"
        )
    points = {
        holder + 1: int.from_bytes(shares[holder], "big")
        for holder in sorted(shares)[:threshold]
    }
    secret = 0
    for at, value in points.items():
        top = bottom = 1
        for other in points.keys() - {at}:
            top = top * other % PRIME
            bottom = bottom * (other - at) % PRIME
        secret = (secret + value * top * pow(bottom, -1, PRIME)) % PRIME
    if secret >> (8 * length):
        raise ValueError("these shares are not of one secret of this length")
    return secret.to_bytes(length, "big")
