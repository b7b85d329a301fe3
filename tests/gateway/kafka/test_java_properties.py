# A Java client's properties file: read as Java reads it, and by librdkafka's names, or why it can't be.

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.kafka.java_properties import InvalidPropertiesFile, load_properties, parse_properties, translate_properties


def test_a_properties_file_is_read_as_java_reads_it() -> None:
    text = (
        "# comment \\\n! another\n\n"
        "plain=value\n"
        " \t key : colon \n"
        "blank value with = and :\r"
        "long = one, \\\r\n   two, \\\n# no comment here\n"
        'escaped\\ key\\=\\:=\\ a\\tb\\\\c\\"d\\u00e4\\uD83D\\uDE00\n'
        "even=ends in one\\\\\n"
        "empty\n"
        "last=1\nlast=2\n"
        "end=cut\\"
    )
    assert parse_properties(text) == {
        "plain": "value",
        "key": "colon ",
        "blank": "value with = and :",
        "long": "one, two, # no comment here",
        "escaped key=:": ' a\tb\\c"dä😀',
        "even": "ends in one\\",
        "empty": "",
        "last": "2",
        "end": "cut",
    }


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uD83D", "\\uZZZZ=1"])
def test_a_wrong_escape_is_an_error(text: str) -> None:
    with pytest.raises(InvalidPropertiesFile, match=r"hexadecimal|half a character"):
        parse_properties(text)


def test_a_wrong_escape_is_found_by_its_line_and_its_text_stays_secret() -> None:
    with pytest.raises(InvalidPropertiesFile) as caught:
        parse_properties("a = 1, \\\r\n  2\rpassword = \\uhush\n")
    assert str(caught.value) == r"line 3: \u needs four hexadecimal digits"


def test_a_line_that_goes_on_in_blank_ones_is_no_entry() -> None:
    assert parse_properties("\\\n\nkey=1\n \t\\\r\n") == {"key": "1"}  # as Java 17 has it


def test_bytes_are_iso_8859_1_as_for_java(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"client.id=\xe4\n")
    assert load_properties(file).properties == {"client.id": "ä"}


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def sasl(jaas: str, mechanism: str = "PLAIN") -> dict[str, str]:
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


@pytest.mark.parametrize(
    ("jaas", "user", "password"),
    [
        (f'{PLAIN} required username="me" password="secret";', "me", "secret"),
        (f"{PLAIN} REQUIRED username=me password='a \"b\" ;=';", "me", 'a "b" ;='),
        (
            f'{PLAIN} required\n  username="m,=e" // who\n  password="a\\"b\\\\c\\101\\n" /* x */ ;\n',
            "m,=e",
            'a"b\\cA\n',
        ),
    ],
)
def test_jaas_names_user_and_password(jaas: str, user: str, password: str) -> None:
    assert translate_properties(sasl(jaas)).properties == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    found = translate_properties(sasl(f'{SCRAM} required username="me" password="x";', mechanism)).properties
    assert (found["sasl.mechanism"], found["sasl.username"]) == (mechanism, "me")


@pytest.mark.parametrize(
    ("java", "why"),
    [
        (sasl(f'{PLAIN} required username="me" password="hush"'), "sasl.jaas.config: must be MODULE required"),
        (sasl(f'{PLAIN} username="me" password="hush";'), "sasl.jaas.config: must be MODULE required"),
        (sasl(f'{PLAIN} required username="me" password="hush;'), "are not closed"),
        (sasl(f'{PLAIN} required username="me" password;'), "must be MODULE required"),
        (sasl(f'{PLAIN} required a=b; {PLAIN} required username="me" password="hush";'), "with one module"),
        (sasl(f'{PLAIN} required username="me";'), 'password="…" is missing'),
        (sasl(f'{SCRAM} required username="me" password="hush";'), f"PLAIN needs {PLAIN}, not"),
        (sasl(f'{SCRAM} required username="u" password="hush" tokenauth=true;', "SCRAM-SHA-256"), "tokenauth"),
        (sasl("com.sun.security.auth.module.Krb5LoginModule required;", "GSSAPI"), "sasl.mechanism: must be one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config: needed"),
        ({"sasl.login.callback.handler.class": "x"}, "sasl.login.callback.handler.class: not supported here"),
        ({"security.protcol": "SSL"}, "security.protcol: not supported here; did you mean security.protocol?"),
        ({"enable.ssl.certificate.verification": "false"}, "not supported here"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "ssl.cipher.suites: not supported here"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols: only TLSv1.2,TLSv1.3"),
        ({"ssl.truststore.password": "hush"}, "ssl.truststore.password: for JKS and PKCS12"),
        ({"ssl.keystore.key": "hush"}, "ssl.keystore.key: write key and certificates to a PEM file"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/x.jks"}, "JKS files can't be read here"),
        ({"config.providers": "file"}, "config.providers: not supported here"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms: must be a number"),
    ],
)
def test_a_property_that_cant_be_had_is_one_line_without_secrets(java: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidPropertiesFile) as caught:
        translate_properties(java)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


def test_tls_with_pem_files() -> None:
    java = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "pem",
        "ssl.keystore.location": "/own.pem",
        "ssl.key.password": "x",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.enabled.protocols": "TLSv1.2, TLSv1.3",
    }
    assert translate_properties(java).properties == {
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.key.password": "x",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/own.pem",
    }
    inline = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "-----BEGIN"}
    assert translate_properties(inline).properties["ssl.ca.pem"] == "-----BEGIN"


def test_properties_that_other_clients_need_are_left_alone() -> None:
    java = {
        "bootstrap.servers": "x:1",
        "acks": "all",
        "group.id": "g",
        "retries": "3",
        "default.api.timeout.ms": "1500",
    }
    assert translate_properties(java) == ({}, 1.5)
    assert translate_properties({"request.timeout.ms": "2000"}).timeout_s == 2.0
