"""A private key that never leaves its host, and the files through which it is used.

The host makes the key, and asks the launcher for a certificate. Key and certificate are
in files in memory, which have no name in any directory: the kernel frees them with the
process that has them open, however it ends.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping

TIMEOUT = 30.0
"""Seconds that making a key may take, and then waiting for its certificate."""

_MODE = 0o600

# Run by the interpreter of the tasks, in their environment: PYTHONPATH counts.
_MAKE = """
import json
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
key = ec.generate_private_key(ec.SECP256R1())
request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
print(json.dumps([
    key.private_bytes(pem, form, serialization.NoEncryption()).decode(),
    request.public_bytes(pem).decode(),
]))
"""


def make(python: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Makes a key, and returns it and a request for its certificate, as PEM.

    Raises:
        OSError: If the interpreter cannot be started.
        ValueError: If it cannot make a key.
    """
    done = subprocess.run(
        [python, "-c", _MAKE],
        env={**env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if done.returncode:
        raise ValueError("; ".join(done.stderr.strip().splitlines()[-1:]))
    key, request = json.loads(done.stdout)
    return key, request


class Files:
    """Files in memory, which a child gets under the numbers they have here."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def numbers(self) -> list[int]:
        """The file descriptors."""
        return [*self._numbers.values()]

    def add(self, name: str, text: str) -> None:
        """Adds a file, after `filled` has named those before it."""
        self._numbers[name] = number = os.memfd_create(name)
        os.fchmod(number, _MODE)
        with open(number, "w", closefd=False) as file:
            file.write(text)
        # `stunnel -fd` reads from the current offset, which writing has moved to the
        # end.
        os.lseek(number, 0, os.SEEK_SET)

    def filled(self, text: str) -> str:
        """Returns a text with the number of each file in place of its `@name@`."""
        for name, number in self._numbers.items():
            text = text.replace(f"@{name}@", str(number))
        return text

    def close(self) -> None:
        """Closes the files; only the child has them from now on."""
        for number in self.numbers:
            with contextlib.suppress(OSError):
                os.close(number)
        self._numbers = {}
