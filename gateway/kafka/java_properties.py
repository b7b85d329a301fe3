# A Java client's properties file, as Kafka's own tools take it with --command-config, in librdkafka's names: the file
# that works with kafka-configs.sh works with kafka-quotas.
#
# Read as Java reads it: ISO 8859-1 with \uXXXX. A property that decides who is reached or trusted is mapped or refused;
# what else is in such a file (acks, group.id, buffers, retries) is left alone, as Java's admin client leaves it. Opens
# no connection. Sources: java.util.Properties.load, org.apache.kafka.common.security.JaasConfig, KIP-651 (PEM).

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import javaproperties

from gateway.name_hints import find_nearest_name


class InvalidPropertiesFile(ValueError):
    """One line: the file, the key and a right value; never a given value that may be a secret."""


class ClientProperties(NamedTuple):
    """`properties`: by librdkafka's names. `timeout_s`: of one call, None if the file says nothing."""

    properties: dict[str, str]
    timeout_s: float | None


_NAME_CHECK: Final = "ssl.endpoint.identification.algorithm"
_SAME_KEYS: Final = ("client.id", "security.protocol", "sasl.mechanism", _NAME_CHECK, "ssl.key.password")
_MAPPED_KEYS: Final = (
    *_SAME_KEYS,
    "sasl.jaas.config",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
)
# Java's own values say what is done anyway; another one can't be had.
_FIXED_VALUES: Final = {
    "ssl.protocol": ("TLS", "TLSv1.2", "TLSv1.3"),
    "ssl.enabled.protocols": ("TLSv1.2,TLSv1.3", "TLSv1.3,TLSv1.2"),
}
_PASSWORD_KEYS: Final = ("ssl.truststore.password", "ssl.keystore.password")
_INLINE_KEYS: Final = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
_SECURITY_PREFIXES: Final = ("security.", "sasl.", "ssl.", "config.providers", "enable.ssl.")
_TIMEOUT_KEYS: Final = ("default.api.timeout.ms", "request.timeout.ms")
_PEM: Final = "PEM"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")  # the library joins two halves that belong together

_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
LOGIN_MODULES: Final = {"PLAIN": _PLAIN_MODULE, "SCRAM-SHA-256": _SCRAM_MODULE, "SCRAM-SHA-512": _SCRAM_MODULE}


def load_properties(path: Path) -> ClientProperties:
    """The contents of a Java client's properties file.

    Raises:
        InvalidPropertiesFile: it can't be read, or has something that is not supported here.
    """
    try:
        text = path.read_bytes().decode("iso-8859-1")
    except OSError as error:
        raise InvalidPropertiesFile(f"{path}: {error.strerror or error}") from error
    try:
        return translate_properties(parse_properties(text))
    except InvalidPropertiesFile as error:
        raise InvalidPropertiesFile(f"{path}: {error}") from error


def use_java_names(text: str) -> str:
    """A message about `ClientProperties.properties` in the names that the file has."""
    for ours, javas in (
        ("ssl.ca.location", "ssl.truststore.location"),
        ("ssl.ca.pem", "ssl.truststore.certificates"),
        ("ssl.certificate.location, ssl.key.location", "ssl.keystore.location"),
        ("ssl.certificate.location", "ssl.keystore.location"),
    ):
        text = text.replace(ours, javas)
    return text


def translate_properties(java: Mapping[str, str]) -> ClientProperties:
    """A Java client's properties by librdkafka's names.

    Raises:
        InvalidPropertiesFile: see `load_properties`.
    """
    for key, value in java.items():
        if near := find_meant_property(key):
            raise InvalidPropertiesFile(f"{key}: not supported here; did you mean {near}?")
        if key.startswith(_SECURITY_PREFIXES) and key not in _MAPPED_KEYS:
            _refuse_property(key, value)
    found = {key: java[key].strip() for key in _SAME_KEYS if key in java}
    if found.get(_NAME_CHECK) == "":  # none in Java, which librdkafka refuses
        found[_NAME_CHECK] = "none"
    if java.get("security.protocol", "").strip().upper().startswith("SASL_"):
        found |= _translate_sasl(java)
    if java.get("security.protocol", "").strip().upper().endswith("SSL"):
        found |= _translate_stores(java)
    return ClientProperties(found, _parse_timeout(java))


def find_meant_property(key: str) -> str | None:
    """The property of which this is a misspelling, which Java's clients ignore; None: it is none. No other property of
    theirs resembles one of these as much.
    """
    if key in (*_MAPPED_KEYS, *_FIXED_VALUES, *_PASSWORD_KEYS, *_INLINE_KEYS, *_TIMEOUT_KEYS):
        return None
    return find_nearest_name(key, (*_MAPPED_KEYS, *_TIMEOUT_KEYS), cutoff=0.9)


def _refuse_property(key: str, value: str) -> None:
    if key in _FIXED_VALUES:
        if value.replace(" ", "") in _FIXED_VALUES[key]:
            return
        raise InvalidPropertiesFile(f"{key}: only {' or '.join(_FIXED_VALUES[key])} is supported here")
    if key in _PASSWORD_KEYS:
        raise InvalidPropertiesFile(
            f"{key}: for JKS and PKCS12 files, which can't be read here: give PEM files, which have none"
        )
    if key in _INLINE_KEYS:
        raise InvalidPropertiesFile(
            f"{key}: write key and certificates to a PEM file and name it in ssl.keystore.location"
        )
    known = f"of security.*, sasl.* and ssl.* these are: {', '.join(_MAPPED_KEYS[1:])}"
    raise InvalidPropertiesFile(f"{key}: not supported here; {known}")


def _translate_sasl(java: Mapping[str, str]) -> dict[str, str]:
    mechanism = java.get("sasl.mechanism", "").strip().upper()
    if mechanism not in LOGIN_MODULES:
        raise InvalidPropertiesFile(f"sasl.mechanism: must be one of {', '.join(LOGIN_MODULES)}")
    if "sasl.jaas.config" not in java:
        raise InvalidPropertiesFile(f"sasl.jaas.config: needed with sasl.mechanism {mechanism}")
    module, options = parse_jaas(java["sasl.jaas.config"])
    if module != LOGIN_MODULES[mechanism]:
        raise InvalidPropertiesFile(
            f"sasl.jaas.config: sasl.mechanism {mechanism} needs {LOGIN_MODULES[mechanism]}, not {module}"
        )
    if strange := sorted(options.keys() - {"username", "password"}):
        raise InvalidPropertiesFile(f"sasl.jaas.config: {strange[0]}: not supported here, only username and password")
    for option in ("username", "password"):
        if not options.get(option):
            raise InvalidPropertiesFile(f'sasl.jaas.config: {option}="…" is missing')
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _translate_stores(java: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for store, ours in (("truststore", "ssl.ca.location"), ("keystore", "ssl.certificate.location")):
        kind = java.get(f"ssl.{store}.type", "JKS").strip().upper()  # Java's default
        if path := java.get(f"ssl.{store}.location", "").strip():
            if kind != _PEM:
                raise InvalidPropertiesFile(
                    f"ssl.{store}.location: {kind} files can't be read here: give a PEM file, and ssl.{store}.type=PEM"
                )
            found[ours] = path
    if pem := java.get("ssl.truststore.certificates", "").strip():
        if "ssl.ca.location" in found:
            raise InvalidPropertiesFile("ssl.truststore.certificates, ssl.truststore.location: give one of them")
        found["ssl.ca.pem"] = pem
    return found


def _parse_timeout(java: Mapping[str, str]) -> float | None:
    for key in _TIMEOUT_KEYS:
        if key in java:
            text = java[key].strip()
            if not (text.isascii() and text.isdigit() and int(text) > 0):
                raise InvalidPropertiesFile(f"{key}: must be a number of milliseconds above 0")
            return int(text) / 1000
    return None


# --- java.util.Properties ---------------------------------------------------------------------------------------------


def parse_properties(text: str) -> dict[str, str]:
    """As java.util.Properties.load has it; the last of several values of a key counts.

    Raises:
        InvalidPropertiesFile: a backslash u without four hexadecimal digits behind it, or half a character.
    """
    found = {}
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                found[element.key] = element.value
            line += len(_LINE_END.findall(element.source))
    except javaproperties.InvalidUEscapeError as error:  # its text has a part of the value
        raise InvalidPropertiesFile(rf"line {line}: \u needs four hexadecimal digits") from error
    for key, value in found.items():
        if _HALF_CHARACTER.search(key + "\n" + value):
            raise InvalidPropertiesFile(f"{key!a}: half a character: a surrogate without its other half")
    return found


# --- JAAS -------------------------------------------------------------------------------------------------------------

_TOKEN_PATTERN: Final = re.compile(
    r"(?P<blank>\s+|//[^\r\n]*|/\*.*?\*/)"
    r"""|(?P<quoted>"(?:\\.|[^"\\\r\n])*"|'(?:\\.|[^'\\\r\n])*')"""
    r"|(?P<word>[\w$.-]+)"
    r"|(?P<mark>[=;])",
    re.DOTALL,
)
_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_JAAS_ESCAPED: Final = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)", re.DOTALL)
_JAAS_CONTROL: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_JAAS_FORM: Final = 'sasl.jaas.config: must be MODULE required username="…" password="…";'


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """The login module and its options, of which there must be one.

    Raises:
        InvalidPropertiesFile: it is none, or more than one.
    """
    tokens = list(_split_tokens(text))
    if len(tokens) < 3 or tokens[0][0] != "word" or tokens[-1] != ("mark", ";") or tokens[1][1].upper() not in _FLAGS:
        raise InvalidPropertiesFile(_JAAS_FORM)
    module, rest = tokens[0][1], tokens[2:-1]
    if ("mark", ";") in rest:
        raise InvalidPropertiesFile(f"{_JAAS_FORM} with one module")
    if len(rest) % 3:
        raise InvalidPropertiesFile(_JAAS_FORM)
    options = {}
    for name, equals, value in zip(*[iter(rest)] * 3, strict=True):
        if name[0] == "mark" or equals != ("mark", "=") or value[0] == "mark":
            raise InvalidPropertiesFile(_JAAS_FORM)
        options[name[1]] = value[1]
    return module, options


def _split_tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        token = _TOKEN_PATTERN.match(text, at)
        if token is None:
            raise InvalidPropertiesFile(
                f"{_JAAS_FORM} (character {at + 1} belongs into double quotes, or they are not closed)"
            )
        at = token.end()
        if token.lastgroup == "quoted":
            yield "quoted", _JAAS_ESCAPED.sub(_unescape_jaas, token[0][1:-1])
        elif token.lastgroup != "blank":
            yield str(token.lastgroup), token[0]


def _unescape_jaas(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _JAAS_CONTROL.get(code, code)
