"""The certificate authority of one job, whose key is in this process's memory alone."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BEFORE = timedelta(days=1)  # The clock of a host may be behind.
_AFTER = timedelta(days=366)
_PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates that are valid from yesterday for a year.

    Attributes:
        certificate: Its own certificate, as PEM.
    """

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        # A name of its own: a certificate of another job's authority is told apart
        # before its signature is looked at.
        number = x509.random_serial_number()
        self._name = _name(f"tfdist job {number:x}"[:64])
        signed = (
            self._builder(self._name, self._key.public_key())
            # A certificate that it signs cannot sign others.
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(_usage(signs_certificates=True), True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = signed.public_bytes(_PEM).decode()

    def sign(self, request: str, names: Sequence[str]) -> str:
        """Returns a certificate for the key in a request.

        Everything else in the request is ignored.

        Raises:
            ValueError: If it is no request, or not signed with its own key.
        """
        asked = x509.load_pem_x509_csr(request.encode())
        if not asked.is_signature_valid:
            raise ValueError("the request is not signed with its own key")
        key = asked.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("the request's key is not on an elliptic curve")
        # Clients and servers show the same certificate.
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        hosts = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
        signed = (
            self._builder(_name(names[0]), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(_usage(signs_certificates=False), True)
            .add_extension(x509.ExtendedKeyUsage(purposes), False)
            .add_extension(hosts, False)
            .sign(self._key, hashes.SHA256())
        )
        return signed.public_bytes(_PEM).decode()

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + _AFTER)
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
