"""Masks from shared secrets: key agreement, and a stream of random integers. Pure.

X25519 and HKDF-SHA256 make a seed that two clients alone know, ChaCha20 makes a mask of
it, and ChaCha20-Poly1305 seals what passes through the server. All of them come from
`cryptography`, which tfdist installs.
"""

import os

import numpy as np

SEED_BYTES = 32


def new_key() -> bytes:
    """Returns a private key of X25519: 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Returns the public key of a private one: 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.from_private_bytes(private)
    return key.public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Returns the seed of two clients: the same from either end.

    Args:
        private: One's own key.
        public: The other's key.
        purpose: Seeds for other purposes, or other rounds, are unrelated.

    Raises:
        ValueError: If the public key is not one.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey,
        X25519PublicKey,
    )
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    secret = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    return HKDF(SHA256(), SEED_BYTES, salt=None, info=purpose).derive(secret)


def mask(seed: bytes, length: int) -> np.ndarray:
    """Returns uniform uint32 integers, (length,): use a seed for one mask alone."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(4 * length)), dtype="<u4").astype(
        np.uint32
    )


def seal(seed: bytes, message: bytes, context: bytes) -> bytes:
    """Returns a message that the other end of a seed alone can read.

    Args:
        seed: What both ends agreed on.
        message: To hide.
        context: Not hidden; `unseal` must be given the same.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = os.urandom(12)
    return nonce + ChaCha20Poly1305(seed).encrypt(nonce, message, context)


def unseal(seed: bytes, sealed: bytes, context: bytes) -> bytes:
    """Returns the message.

    Raises:
        ValueError: If it was changed, or sealed for another purpose or by another seed.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(seed).decrypt(sealed[:12], sealed[12:], context)
    except InvalidTag as error:
        raise ValueError(
            "a sealed share was changed on its way, or was meant for another round or "
            "another client"
        ) from error
