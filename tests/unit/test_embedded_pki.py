"""The cluster's certificates: made once, kept, and made anew when they will not do any more."""

from __future__ import annotations

import json
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509

from helpers.cluster.embedded import kubeconfig
from helpers.cluster.embedded.pki import (
    AUTHORITIES,
    CA,
    CERTIFICATES,
    ETCD_CA,
    SERVICE_ACCOUNTS,
    Certificate,
    Pki,
    of_kubelet,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ALL = [*AUTHORITIES, SERVICE_ACCOUNTS, *(certificate.name for certificate in CERTIFICATES)]
KUBELET = of_kubelet("cpu-a", IPv4Address("10.88.255.11"))


@pytest.fixture
def keys(tmp_path: Path) -> Pki:
    made = Pki(tmp_path / "a place" / "pki")
    assert made.ensure(now=NOW) == ALL
    return made


def read(keys: Pki, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(keys.certificate(name).read_bytes())


def test_what_is_there_is_kept(keys):
    before = {file.name: file.read_bytes() for file in keys.directory.iterdir()}
    assert keys.ensure(now=NOW + timedelta(days=300)) == []
    assert {file.name: file.read_bytes() for file in keys.directory.iterdir()} == before


def test_only_the_owner_can_read_it(keys):
    assert stat.S_IMODE(keys.directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in keys.directory.iterdir()} == {0o600}


@pytest.mark.parametrize("certificate", CERTIFICATES, ids=lambda certificate: certificate.name)
def test_openssl_verifies_each_by_its_own_authority_only(keys, certificate):
    def verify(authority: str) -> int:
        time = str(int(NOW.timestamp()))
        files = [str(keys.certificate(authority)), str(keys.certificate(certificate.name))]
        command = ["openssl", "verify", "-x509_strict", "-attime", time, "-CAfile", *files]
        return subprocess.run(command, capture_output=True).returncode

    assert {authority: verify(authority) == 0 for authority in AUTHORITIES} == {
        authority: authority == certificate.authority for authority in AUTHORITIES
    }


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        # kubernetes.io, "PKI certificates and requirements", and "Using Node Authorization" for the last
        ("admin", "CN=kubernetes-admin,O=system:masters"),
        ("controller-manager", "CN=system:kube-controller-manager"),
        ("scheduler", "CN=system:kube-scheduler"),
        ("proxy", "CN=system:kube-proxy"),
        ("front-proxy-client", "CN=front-proxy-client"),
        ("kubelet-cpu-a", "CN=system:node:cpu-a,O=system:nodes"),
    ],
)
def test_kubernetes_knows_them_by_these_names(keys, name, subject):
    keys.ensure([KUBELET], now=NOW)
    assert read(keys, name).subject.rfc4514_string() == subject


def test_the_api_server_serves_the_names_that_clients_use(keys):
    names = read(keys, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(map(str, names.get_values_for_type(x509.IPAddress))) == {"10.88.255.1", "10.96.0.1", "127.0.0.1"}
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)


def test_who_only_asks_cannot_serve(keys):
    uses = read(keys, "admin").extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [use._name for use in uses] == ["clientAuth"]


@pytest.mark.parametrize(("days", "renewed"), [(334, False), (336, True), (400, True)])
def test_a_certificate_is_renewed_30_days_before_its_end(keys, days, renewed):
    made = keys.ensure(now=NOW + timedelta(days=days))
    assert made == ([certificate.name for certificate in CERTIFICATES] if renewed else [])


def test_when_the_clock_was_set_back_everything_but_the_tokens_key_is_made_anew(keys):
    earlier = NOW - timedelta(days=365)
    assert keys.ensure(now=earlier) == [name for name in ALL if name != SERVICE_ACCOUNTS]
    assert read(keys, CA).not_valid_before_utc <= earlier


def test_an_hour_back_is_nothing(keys):
    assert keys.ensure(now=NOW - timedelta(hours=1)) == []


def test_other_names_make_a_new_certificate(keys):
    keys.ensure([KUBELET], now=NOW)
    moved = of_kubelet("cpu-a", IPv4Address("10.88.255.12"))
    assert keys.ensure([moved], now=NOW) == ["kubelet-cpu-a"]
    assert keys.ensure([moved], now=NOW) == []


def test_another_user_makes_a_new_certificate(keys):
    assert keys.ensure([Certificate("proxy", CA, "system:kube-proxy", "system:masters")], now=NOW) == ["proxy"]


@pytest.mark.parametrize("content", [b"", b"no certificate"])
@pytest.mark.parametrize("kind", ["crt", "key"])
def test_what_a_crash_left_half_is_made_anew(keys, content, kind):
    (keys.directory / f"scheduler.{kind}").write_bytes(content)
    assert keys.ensure(now=NOW) == ["scheduler"]


def test_a_key_of_another_certificate_is_not_used(keys):
    keys.key("scheduler").write_bytes(keys.key("proxy").read_bytes())
    assert keys.ensure(now=NOW) == ["scheduler"]


def test_a_new_authority_makes_what_it_signed_anew(keys):
    keys.key(ETCD_CA).unlink()
    assert keys.ensure(now=NOW) == [ETCD_CA, "etcd", "apiserver-etcd-client"]


@pytest.mark.parametrize("kind", ["key", "pub"])
def test_a_lost_tokens_key_is_made_anew(keys, kind):
    (keys.directory / f"{SERVICE_ACCOUNTS}.{kind}").write_bytes(b"")
    assert keys.ensure(now=NOW) == [SERVICE_ACCOUNTS]


# ---- kubeconfigs -----------------------------------------------------------------------------------------------------


def test_a_components_kubeconfig_names_files(keys):
    config = json.loads(kubeconfig.by_paths(keys, "scheduler", "https://10.88.255.1:6443"))
    assert config["users"][0]["user"] == {
        "client-certificate": str(keys.certificate("scheduler")),
        "client-key": str(keys.key("scheduler")),
    }
    assert config["clusters"][0]["cluster"]["server"] == "https://10.88.255.1:6443"


def test_the_learners_kubeconfig_holds_all_that_is_needed(keys):
    text = kubeconfig.by_value(keys, "admin", "https://127.0.0.1:26443")
    assert str(keys.directory) not in text
    config = json.loads(text)
    assert config["current-context"] == config["contexts"][0]["name"] == "ray-course"
