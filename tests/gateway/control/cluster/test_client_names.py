# Where brokers know a client by another name than the gateway does.

from __future__ import annotations

import pytest

from gateway.config import parse_settings
from gateway.control.cluster.client_names import find_other_names

TLS = "ssl.keystore.location: /gw.pem, ssl.truststore.location: /ca.pem"
AUTHENTICATION = "sasl.enabled.mechanisms: PLAIN, credentials_file: /users, upstream_credentials_file: /own"


@pytest.mark.parametrize(
    ("sections", "begins"),
    [
        ("", ""),
        (f"authentication: {{{AUTHENTICATION}}}", "SASL ends at the gateway"),
        (f"authentication: {{{AUTHENTICATION}}}, listener: {{authentication: {{enabled: false}}}}", ""),
        (f"listeners: {{a: {{port: 1000}}, b: {{port: 2000, authentication: {{{AUTHENTICATION}}}}}}}", "SASL ends"),
        (f"listener: {{{TLS}, ssl.client.auth: required}}", "brokers don't see clients' certificates"),
        ("listener: {ssl.keystore.location: /gw.pem}", ""),
    ],
)  # fmt: skip
def test_they_do_where_sasl_or_certificates_end_at_the_gateway(sections: str, begins: str) -> None:
    text = find_other_names(parse_settings(f"{{upstream: {{bootstrap_servers: 'b:9092'}}, {sections}}}"))
    assert (text.startswith(begins), bool(text)) == (True, bool(begins))


def test_certificates_are_no_names_where_brokers_want_sasl() -> None:
    sasl = "security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.username: a, sasl.password: b"
    listener = f"listener: {{{TLS}, ssl.client.auth: requested}}"
    assert find_other_names(parse_settings(f"{{upstream: {{bootstrap_servers: 'b:9092', {sasl}}}, {listener}}}")) == ""
