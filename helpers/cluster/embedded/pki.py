"""The cluster's certificates and keys, as kubeadm lays them out: three authorities, so that who may talk to the API
server may not for that reason talk to etcd.

Facts: "PKI certificates and requirements" (kubernetes.io), which names the subjects; RFC 5280 for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from helpers.cluster.embedded.layout import API_ADDRESS, DOMAIN, KUBERNETES_SERVICE
from helpers.state import write_private

AUTHORITY_DAYS = 3650
DAYS = 365
RENEW_DAYS = 30  # a certificate that ends sooner than this is made anew by the next `course up`
BACKDATED = timedelta(days=1)  # so that a clock that is set back a little does not make a certificate "not yet valid"

API_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{DOMAIN}",
)
LOOPBACK = IPv4Address("127.0.0.1")


@dataclass(frozen=True)
class Certificate:
    """A certificate that the cluster needs.

    Attributes:
        name: of its files, `NAME.crt` and `NAME.key`.
        authority: name of the authority that signs it.
        common_name: to Kubernetes, the user's name.
        organization: to Kubernetes, the user's group.
        names: DNS names and addresses that it serves; none for one that only clients use.
    """

    name: str
    authority: str
    common_name: str
    organization: str = ""
    names: tuple[str | IPv4Address, ...] = ()


CA, ETCD_CA, FRONT_PROXY_CA = "ca", "etcd-ca", "front-proxy-ca"
AUTHORITIES = {CA: "kubernetes-ca", ETCD_CA: "etcd-ca", FRONT_PROXY_CA: "front-proxy-ca"}
ADMIN = Certificate("admin", CA, "kubernetes-admin", "system:masters")
CERTIFICATES = (
    ADMIN,
    Certificate("apiserver", CA, "kube-apiserver", names=(*API_NAMES, API_ADDRESS, KUBERNETES_SERVICE, LOOPBACK)),
    Certificate("apiserver-kubelet-client", CA, "kube-apiserver-kubelet-client"),
    Certificate("controller-manager", CA, "system:kube-controller-manager"),
    Certificate("scheduler", CA, "system:kube-scheduler"),
    Certificate("proxy", CA, "system:kube-proxy"),
    Certificate("coredns", CA, "system:coredns"),
    Certificate("kuberay-operator", CA, "kuberay-operator"),
    Certificate("front-proxy-client", FRONT_PROXY_CA, "front-proxy-client"),
    Certificate("etcd", ETCD_CA, "etcd", names=("localhost", LOOPBACK)),
    Certificate("apiserver-etcd-client", ETCD_CA, "kube-apiserver-etcd-client"),
)
SERVICE_ACCOUNTS = "service-accounts"  # signs the tokens of ServiceAccounts; a bare key, that never ends


def of_kubelet(machine: str, address: IPv4Address) -> Certificate:
    """The certificate by which a machine's kubelet is known, and by which it serves logs and exec."""
    return Certificate(
        f"kubelet-{machine}", CA, f"system:node:{machine}", "system:nodes", (machine, "localhost", address)
    )


class Pki:
    """The directory of keys and certificates.

    Args:
        directory: made if it is not there; only its owner may look into it, and only its owner may read a key.
    """

    def __init__(self, directory: Path):
        self.directory = directory

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    @property
    def service_accounts_public(self) -> Path:
        return self.directory / f"{SERVICE_ACCOUNTS}.pub"

    def ensure(self, wanted: Sequence[Certificate] = CERTIFICATES, *, now: datetime | None = None) -> list[str]:
        """Make what is missing or will not do any more; keep the rest as it is.

        Args:
            wanted: the certificates that there must be.
            now: the time to judge by; the clock's if left away.

        Returns:
            The names of what was made. A certificate is made anew when it ends in less than `RENEW_DAYS`, is not valid
            yet (the clock was set back), serves other names than it must, or its authority was made anew.
        """
        now = now or datetime.now(UTC)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        made = [name for name in AUTHORITIES if not self._is_sound_authority(name, now)]
        for name in made:
            self._make_authority(name, now)
        if not self._are_sound_service_accounts():
            self._make_service_accounts()
            made.append(SERVICE_ACCOUNTS)
        for certificate in wanted:
            if not self._is_sound(certificate, now):
                self._make(certificate, now)
                made.append(certificate.name)
        return made

    # ---- is what is there still good? --------------------------------------------------------------------------------

    def _is_sound_authority(self, name: str, now: datetime) -> bool:
        try:
            certificate, key = self._load(name)
        except (OSError, ValueError):
            return False
        return certificate.public_key() == key.public_key() and _is_in_time(certificate, now)

    def _is_sound(self, wanted: Certificate, now: datetime) -> bool:
        try:
            certificate, key = self._load(wanted.name)
            authority, _ = self._load(wanted.authority)
            certificate.verify_directly_issued_by(authority)
        except (OSError, ValueError, TypeError, InvalidSignature):
            return False
        return (
            certificate.public_key() == key.public_key()
            and _is_in_time(certificate, now)
            and certificate.subject == _subject(wanted.common_name, wanted.organization)
            and _names(certificate) == set(wanted.names)
        )

    def _are_sound_service_accounts(self) -> bool:
        try:
            key = serialization.load_pem_private_key(self.key(SERVICE_ACCOUNTS).read_bytes(), None)
            public = serialization.load_pem_public_key(self.service_accounts_public.read_bytes())
        except (OSError, ValueError):
            return False
        return key.public_key() == public

    def _load(self, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        certificate = x509.load_pem_x509_certificate(self.certificate(name).read_bytes())
        return certificate, serialization.load_pem_private_key(self.key(name).read_bytes(), None)

    # ---- making ------------------------------------------------------------------------------------------------------

    def _make_authority(self, name: str, now: datetime) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(AUTHORITIES[name])
        usage = dict.fromkeys(
            ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
        )
        builder = (
            _builder(subject, subject, key, now, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True, key_encipherment=True, key_cert_sign=True, crl_sign=True, **usage
                ),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        self._write(name, builder.sign(key, hashes.SHA256()), key)

    def _make(self, wanted: Certificate, now: datetime) -> None:
        authority, authority_key = self._load(wanted.authority)
        key = ec.generate_private_key(ec.SECP256R1())
        # what serves is a client too: etcd of its own peers, a kubelet of the API server
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if wanted.names else [])]
        builder = (
            _builder(_subject(wanted.common_name, wanted.organization), authority.subject, key, now, DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )
        if wanted.names:
            names = [
                x509.IPAddress(name) if isinstance(name, IPv4Address) else x509.DNSName(name) for name in wanted.names
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(wanted.name, builder.sign(authority_key, hashes.SHA256()), key)

    def _make_service_accounts(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(self.key(SERVICE_ACCOUNTS), _pem(key))
        write_private(
            self.service_accounts_public,
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        )

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        # a crash between the two leaves a pair that does not match, which the next `ensure` sees
        write_private(self.key(name), _pem(key))
        write_private(self.certificate(name), certificate.public_bytes(serialization.Encoding.PEM))


def _subject(common_name: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - BACKDATED, now + timedelta(days=days)
    )


def _is_in_time(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - timedelta(days=RENEW_DAYS)


def _names(certificate: x509.Certificate) -> set[str | IPv4Address]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.IPAddress)}


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
