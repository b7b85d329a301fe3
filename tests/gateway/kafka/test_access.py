# What becomes of librdkafka's properties: how a broker is reached and trusted, or why they can't be used.

from __future__ import annotations

import gc
import ssl
import subprocess
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from gateway.kafka.access import BrokerAccess, InvalidProperties, SaslCredentials, parse_access
from gateway.kafka.client import BrokerClient, BrokerConnection, NoAnswer


def refused(**properties: str) -> str:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    with pytest.raises(InvalidProperties) as caught:
        parse_access(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tls(properties: dict[str, str]) -> ssl.SSLContext:
    context = parse_access(properties).tls_context
    assert context is not None
    return context


def test_nothing_given_is_plaintext() -> None:
    assert parse_access({}) == BrokerAccess("produce-gateway", None, None)


@pytest.mark.parametrize("key", ["sasl.mechanism", "sasl.mechanisms"])
def test_sasl_by_either_name(key: str) -> None:
    given = {"security.protocol": "sasl_plaintext", key: "scram-sha-512", "sasl.username": "u", "sasl.password": "p"}
    assert parse_access(given) == BrokerAccess(
        "produce-gateway", None, SaslCredentials("SCRAM-SHA-512", "u", "p"), None, True
    )


def test_how_librdkafka_uses_its_sockets_is_passed_over() -> None:
    assert parse_access({"socket.keepalive.enable": "true", "broker.address.family": "v4"}) == parse_access({})


def test_an_unknown_property_is_named_beside_those_that_are_known() -> None:
    said = refused(ssl_truststore_location="/trust.jks")
    assert said.startswith("ssl.truststore.location: ")
    assert "ssl.ca.location" in said
    assert "sasl.username" in said
    assert "/trust.jks" not in said  # it might be a password


def test_mistakes_of_sasl_are_found_without_connecting() -> None:
    assert refused(security_protocol="TLS").startswith("security.protocol: must be one of PLAINTEXT, SSL,")
    assert refused(security_protocol="SASL_SSL").startswith("sasl.mechanism: must be one of PLAIN,")
    gssapi = refused(security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI")
    assert gssapi.startswith("sasl.mechanism: must be one of PLAIN,")
    bearer = refused(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER")
    assert bearer.startswith("sasl.oauthbearer.method: must be oidc")
    plain = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    assert refused(**plain, sasl_password="hidden") == "sasl.username: needed with sasl.mechanism PLAIN"
    assert refused(**plain, sasl_username="u") == "sasl.password: needed with sasl.mechanism PLAIN"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, its key, and the same key behind a password."""
    folder = tmp_path_factory.mktemp("pki")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    made = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *made], check=True, capture_output=True)
    locked = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", str(folder / "key.pem")]
    subprocess.run([*locked, "-out", str(folder / "locked.pem")], check=True, capture_output=True)
    return folder


def test_tls_verifies_host_and_certificate_unless_told_otherwise(pki: Path) -> None:
    ca = {"security.protocol": "SSL", "ssl.ca.location": str(pki / "cert.pem")}
    context = tls(ca)
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert context.cert_store_stats()["x509"] == 1
    pem = {"security.protocol": "SSL", "ssl.ca.pem": (pki / "cert.pem").read_text()}
    assert tls(pem).cert_store_stats()["x509"] == 1

    context = tls({**ca, "ssl.endpoint.identification.algorithm": "none"})
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
    context = tls({**ca, "enable.ssl.certificate.verification": "false"})
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)


def test_files_of_tls_are_tried_without_connecting(pki: Path, tmp_path: Path) -> None:
    nothing, text = str(tmp_path / "nothing.pem"), tmp_path / "text.pem"
    text.write_text("no certificate")
    assert refused(security_protocol="SSL", ssl_ca_location=nothing) == (
        f"ssl.ca.location: {nothing} can't be read: No such file or directory"
    )
    assert refused(security_protocol="SSL", ssl_ca_location=str(text)).startswith(
        f"ssl.ca.location: {text} has no certificate in PEM"
    )
    own = {"security_protocol": "SSL", "ssl_certificate_location": str(pki / "cert.pem")}
    assert refused(**own, ssl_key_location=nothing).startswith(f"ssl.key.location: {nothing} can't be read: No such")
    assert refused(security_protocol="SSL", ssl_key_location=nothing).startswith("ssl.certificate.location: needed")
    assert "ssl.key.password" in refused(**own, ssl_key_location=str(pki / "locked.pem"))
    wrong = refused(**own, ssl_key_location=str(pki / "locked.pem"), ssl_key_password="wrong-one")
    assert "ssl.key.password" in wrong
    assert "wrong-one" not in wrong
    given = {key.replace("_", "."): value for key, value in own.items()}
    tls({**given, "ssl.key.location": str(pki / "locked.pem"), "ssl.key.password": "secret"})


def test_certificate_and_key_as_text_reach_no_disk(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"security.protocol": "SSL", "ssl.certificate.pem": (pki / "cert.pem").read_text()}
    locked = (pki / "locked.pem").read_text()
    with pytest.raises(InvalidProperties, match=r"^ssl\.key\.password: is needed, because the key in it is encrypted$"):
        parse_access(given | {"ssl.key.pem": locked})
    gc.collect()  # earlier tests' sockets, which may else be closed at any moment
    before = set(Path("/proc/self/fd").iterdir())
    assert tls(given | {"ssl.key.pem": locked, "ssl.key.password": "secret"}).cert_store_stats()["x509_ca"] >= 0
    assert len(set(Path("/proc/self/fd").iterdir())) == len(before)


def test_tls_files_that_vanish_later_fail_the_question_only(pki: Path, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes((pki / "cert.pem").read_bytes())
    client = BrokerClient({"security.protocol": "SSL", "ssl.ca.location": str(ca)}, "127.0.0.1:1", 5.0)
    ca.unlink()
    with pytest.raises(NoAnswer, match=r"^ssl\.ca\.location: .*No such file"):
        client.run(lambda asking: asking.request_any_broker(_nothing))


async def _nothing(_: BrokerConnection) -> None:
    await trio.lowlevel.checkpoint()
