# The plugin's properties, one after the other, into lines of our YAML.

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.kafka import java_properties
from gateway.strimzi.plugin_settings import (
    ADMIN_PREFIX,
    BOOTSTRAP_KEY,
    CHECK_ISO,
    CHECK_SECONDS,
    CLASS_KEY,
    CLIENT_ID_KEY,
    EXCLUDED_KEY,
    FALLBACK_KEY,
    FETCH,
    FREE_BYTES,
    FREE_PERCENT,
    HARD,
    KNOWN_KEYS,
    MIN_BYTES,
    MIN_RATIO,
    PLUGIN_CLASSES,
    PLUGIN_PREFIX,
    PRODUCE,
    REQUEST,
    SOFT,
    VALIDITY_KEY,
    ImportRefused,
    ListenerEndpoint,
    suggest_key,
)  # fmt: skip
from policies.quotas.store import MAX_PERCENT
from policies.units import parse_iso8601

MAX_COLUMNS: Final = 118
LONG_MAX: Final = 2**63 - 1  # "no limit", as doubles beyond it are
_PER_USER_NOTE: Final = "each user, where the plugin's was shared by all clients of a broker"


class YamlWriter:
    """Takes the properties one after the other into lines of YAML; `remarks` gathers the lines for standard error."""

    def __init__(self, properties: Mapping[str, str], remarks: list[str], aggregate_limits: bool) -> None:
        self.remarks = remarks
        self._aggregate_limits = aggregate_limits
        self._properties = properties
        self._lines: list[str] = []

    def check_property_names(self) -> None:
        plugin = self._properties.get(CLASS_KEY)
        if plugin is None:
            self.remarks.append(
                f"{CLASS_KEY} is not set: the plugin is not in use there, its settings are imported anyway"
            )
        elif plugin not in PLUGIN_CLASSES:
            self.remarks.append(f"{CLASS_KEY} is {plugin}, not Strimzi's: its settings are imported by their names")
        for key in self._properties:
            if not key.startswith("client.quota.callback.") or key == CLASS_KEY or key.startswith(ADMIN_PREFIX):
                continue
            if key not in KNOWN_KEYS:
                self.remarks.append(f"{key}: unknown{suggest_key(key, KNOWN_KEYS)}: left out")

    def write_yaml(self, name: str, override: str, listeners: Sequence[ListenerEndpoint]) -> str:
        self._lines = [f"# Imported from {_one_line(name)}. Now run `produce-gateway check` on it."]
        admin = self._properties.get(BOOTSTRAP_KEY, "")
        bootstrap = override or admin or (listeners[0].address if listeners else "")
        if not bootstrap:
            raise ImportRefused(
                f"{BOOTSTRAP_KEY} is missing, and no listener with a known address is there: give"
                " --bootstrap-servers host:port"
            )
        security, notes = self._convert_admin_properties()
        apart = bool(override and admin and override != admin)
        clients: tuple[dict[str, str], list[str]] = (security, notes)
        if apart or not admin:
            listener = next((each for each in listeners if each.address == bootstrap), ListenerEndpoint())
            if listener.protocol != "PLAINTEXT":
                clients = ({"security.protocol": listener.protocol}, list(listener.notes))
                self.remarks += [
                    f"upstream.{note.partition(':')[0]}: see the comment in the output" for note in listener.notes
                ]
            elif apart:
                clients = ({}, [])
        self._write_upstream(bootstrap, admin, *clients)
        produce = self._write_thresholds()
        self._write_client_quotas()
        self._write_internal()
        self._write_storage(produce, admin if apart else "", security if apart else {}, notes if apart else [])
        if CLIENT_ID_KEY in self._properties:
            self._lines.append("")
            self._write_comment(f"{CLIENT_ID_KEY} is not taken over: the gateway names its clients itself.")
        return "\n".join(self._lines) + "\n"

    def _write_upstream(self, bootstrap: str, admin: str, security: Mapping[str, str], notes: list[str]) -> None:
        self._lines += ["", "upstream:"]
        if bootstrap == admin:
            self._write_comment(
                "Clients' connections go there as well. If that is the brokers' own listener (Strimzi: 9091), put the"
                " clients' one here and that one under storage.admin.",
                2,
            )
        self._write_line(2, "bootstrap_servers", bootstrap)
        self._write_properties(2, security, notes)

    def _write_properties(self, indent: int, security: Mapping[str, str], notes: list[str]) -> None:
        for key, value in security.items():
            if key.endswith(".password"):
                self._write_comment(f"Better from a file: {key}: {{file: /run/secrets/password}}", indent)
                self.remarks.append(f"the output holds {key} in clear: better from a file, as the comment says")
            self._write_line(indent, key, value)
        for note in notes:
            self._write_comment(note, indent)

    def _write_thresholds(self) -> bool:
        rate = self._parse_number(PRODUCE)
        if rate is None or rate >= LONG_MAX:
            return False
        self._lines += ["", "thresholds:"]
        self._write_comment(
            "Per broker, shared by all clients that are not excluded. The plugin slowed producers down and never"
            " rejected: so does on_exceed: delay.",
            2,
        )
        # The plugin never went below 1 either.
        self._write_line(2, "total.bytes.in.per.sec.threshold", max(1, math.floor(rate)))
        self._write_line(2, "on_exceed", "delay")
        return True

    def _write_client_quotas(self) -> None:
        fetch, request = self._parse_number(FETCH), self._parse_number(REQUEST)
        values = []
        if fetch is not None and fetch < LONG_MAX:
            values.append(f"consumer_byte_rate: {max(1, math.floor(fetch))}")
            self.remarks.append(f"{FETCH}={self._properties[FETCH]}: becomes a quota of {_PER_USER_NOTE}")
        if request is not None and request < LONG_MAX:
            values.append("request_percentage: " + f"{min(max(1.0, request), MAX_PERCENT):.6f}".rstrip("0").rstrip("."))
            self.remarks.append(
                f"{REQUEST}={self._properties[REQUEST]}: becomes a quota of {_PER_USER_NOTE}, and is a part of"
                " the time of the"
                " gateway's thread, not of a broker's threads"
            )
        if not values:
            return
        self._lines += ["", "client_quotas:"]
        self._write_comment(
            "Per broker, and each user has it: the plugin's was shared by all clients of a broker. Without SASL all of"
            " them are one user, ANONYMOUS.",
            2,
        )
        self._lines.append(f"  - {{user: <default>, {', '.join(values)}}}")

    def _write_internal(self) -> None:
        text = self._properties.get(EXCLUDED_KEY, "")
        principals = self._split_principals(text) if text else []
        if not principals:
            return
        self._lines += ["", "internal:"]
        self._write_comment("Metered, never limited.", 2)
        if any("=" in principal for principal in principals):
            self._write_comment(
                "Names of client certificates come up where clients' TLS ends at the gateway, on a listener with"
                " ssl.client.auth. Strimzi's own operators go to the brokers directly.",
                2,
            )
        self._lines.append("  principals:")
        self._lines += [f"    - {_yaml_scalar(principal)}" for principal in principals]

    def _split_principals(self, text: str) -> list[str]:
        """`User:a;User:CN=b,O=c`, as the plugin has it since 0.3; before, it was names with commas between."""
        if "User:" not in text and ";" not in text and "=" not in text:
            principals = [f"User:{name.strip()}" for name in text.split(",") if name.strip()]
            self.remarks.append(
                f"{EXCLUDED_KEY}: names without User: as before plugin 0.3: taken as {'; '.join(principals)}"
            )
            return principals
        principals = [part.strip() for part in text.split(";") if part.strip()]
        for principal in principals:
            if not principal.startswith("User:") or principal == "User:":
                raise ImportRefused(
                    f"{EXCLUDED_KEY}: {principal!r} is not a valid principal: write User:name;User:name"
                )
            if "User:" in principal[1:]:
                raise ImportRefused(f"{EXCLUDED_KEY}: {principal!r}: principals are separated by ';', not by ','")
        return principals

    def _write_storage(self, produce: bool, admin: str, security: Mapping[str, str], notes: list[str]) -> None:
        limits = self._limit_lines(produce)
        if not limits:
            return
        self._lines += ["", "storage:"]
        interval = self._check_interval()
        if interval:
            self._write_line(2, "check_interval", interval)
        if admin:
            self._lines.append("  admin:")
            self._write_line(4, "bootstrap_servers", admin)
            self._write_properties(4, security, notes)
        for line in limits:
            self._lines.append(f"  {line}")
        if FALLBACK_KEY in self._properties:
            self._lines.append(f"  {FALLBACK_KEY.removeprefix(PLUGIN_PREFIX)}: {self._parse_share(FALLBACK_KEY)}")
        elif any(side + what in self._properties for side in (SOFT, HARD) for what in (FREE_BYTES, FREE_PERCENT)):
            self._write_comment(
                "As in Strimzi's proposal 035, where these limits come from: a pause while the state of the disks can't"
                " be determined. 1.0 lets producers in then.",
                2,
            )
            self._write_line(2, FALLBACK_KEY.removeprefix(PLUGIN_PREFIX), 0)
        if VALIDITY_KEY in self._properties:
            self._write_line(2, VALIDITY_KEY.removeprefix(PLUGIN_PREFIX), self._parse_iso_duration(VALIDITY_KEY))

    def _limit_lines(self, produce: bool) -> list[str]:
        """Lines below `storage`; none where nothing is limited."""
        lowest = [key for key in (MIN_BYTES, MIN_RATIO) if key in self._properties]
        soft, hard = self._find_limit_key(SOFT), self._find_limit_key(HARD)
        if soft is not None and not produce:
            self.remarks.append(f"{soft}: left out: without {PRODUCE} there is nothing that a soft limit could reduce")
            soft = None
        given = [*lowest, *(key for key in (soft, hard) if key is not None)]
        if len(lowest) > 1 or (lowest and len(given) > 1):
            raise ImportRefused(f"{given[0]} and {given[1]} exclude each other: keep one")
        if lowest:
            kind, level = self._convert_limit(lowest[0])
            return [f"min.available.{'ratio' if kind == 'MinFreePercentage' else 'bytes'}: {level}"]
        lines = []
        for name, key in (("soft", soft), ("hard", hard)):
            if key is None:
                continue
            if key in (SOFT, HARD):
                lines.append(
                    "# Of each volume; the plugin compared the used bytes of all volumes of a broker together."
                )
            kind, level = self._convert_limit(key)
            lines.append(f"{name}: {{type: {kind}, level: {level}}}")
        return lines

    def _convert_limit(self, key: str) -> tuple[str, str]:
        """Type and level. 0 (nothing is free at all) becomes one byte, as we take no limit of 0."""
        if key in (SOFT, HARD):
            return "ConsumedBytes", str(self._parse_bytes(key))
        if (self._parse_number(key) or 0) == 0:
            return "MinFreeBytes", "1"
        if key.endswith((FREE_PERCENT, MIN_RATIO)):
            return "MinFreePercentage", self._parse_share(key)
        return "MinFreeBytes", str(self._parse_bytes(key))

    def _find_limit_key(self, side: str) -> str | None:
        """The property that says where the soft or the hard limit is."""
        found = [side + what for what in (FREE_BYTES, FREE_PERCENT) if side + what in self._properties]
        if side in self._properties and (self._parse_number(side) or 0) < LONG_MAX:
            if self._aggregate_limits:
                found.append(side)
            else:
                self.remarks.append(
                    f"{side}: left out: it limited the used bytes of all volumes of a broker together; with"
                    " --aggregate-limits it becomes a limit of ConsumedBytes for each volume"
                )
        if len(found) > 1:
            raise ImportRefused(f"{found[0]} and {found[1]} exclude each other: keep one")
        return found[0] if found else None

    def _check_interval(self) -> str:
        if CHECK_SECONDS in self._properties and CHECK_ISO in self._properties:
            raise ImportRefused(f"{CHECK_SECONDS} and {CHECK_ISO} exclude each other: keep one")
        if CHECK_ISO in self._properties:
            return self._parse_iso_duration(CHECK_ISO)
        seconds = self._parse_number(CHECK_SECONDS)
        if seconds is None:
            return ""
        if seconds != int(seconds):
            raise ImportRefused(
                f"{CHECK_SECONDS}={self._properties[CHECK_SECONDS]}: whole seconds are needed, for example 60"
            )
        if seconds == 0:
            self._write_comment("Off, as it was in the plugin.", 2)
        return f"PT{seconds:.0f}S"

    def _convert_admin_properties(self) -> tuple[dict[str, str], list[str]]:
        """The properties of the plugin's Java client, by librdkafka's names, and notes on the work left."""
        given = {
            key.removeprefix(ADMIN_PREFIX): value
            for key, value in self._properties.items()
            if key.startswith(ADMIN_PREFIX)
        }
        given.pop("bootstrap.servers", None)
        notes = []
        for key in [key for key, value in given.items() if "${" in value]:
            del given[key]
            notes.append(
                f"{ADMIN_PREFIX}{key}: refers to something that only a broker can look up; write it here by hand."
            )
        taken: dict[str, str] = {
            key: given.pop(key) for key in ("security.protocol", "sasl.mechanism", "ssl.key.password") if key in given
        }
        if "ssl.endpoint.identification.algorithm" in given:
            algorithm = given.pop("ssl.endpoint.identification.algorithm")
            taken["ssl.endpoint.identification.algorithm"] = algorithm or "none"  # "" is how Java turns it off
        notes += self._convert_login(given, taken)
        notes += _convert_store(given, taken, "truststore", ("ssl.ca.location",), ("-nokeys -out ca.pem",))
        notes += _convert_store(
            given, taken, "keystore", ("ssl.certificate.location", "ssl.key.location"),
("-nokeys -out client.crt", "-nocerts -noenc -out client.key"),
        )  # fmt: skip
        for key, names in (
            ("ssl.truststore.certificates", "ssl.ca.location"),
            ("ssl.keystore.certificate.chain", "ssl.certificate.location"),
            ("ssl.keystore.key", "ssl.key.location"),
        ):
            if given.pop(key, None) is not None:
                notes.append(f"{ADMIN_PREFIX}{key}: put the PEM text into a file and name that here as {names}.")
        self.remarks += [f"{note.partition(':')[0]}: see the comment in the output" for note in notes]
        if given:
            left = ", ".join(sorted(ADMIN_PREFIX + key for key in given))
            notes.append(f"Not taken over, since it is about Java's client: {left}.")
        return taken, notes

    def _convert_login(self, given: dict[str, str], taken: dict[str, str]) -> list[str]:
        jaas = given.pop("sasl.jaas.config", None)
        if jaas is None:
            return []
        try:
            module, options = java_properties.parse_jaas(jaas)
        except java_properties.InvalidPropertiesFile:
            module, options = jaas.partition(" ")[0], {}
        module = module.rpartition(".")[2]
        if module in ("PlainLoginModule", "ScramLoginModule") and {"username", "password"} <= options.keys():
            taken["sasl.username"], taken["sasl.password"] = options["username"], options["password"]
            return []
        return [
            f"{ADMIN_PREFIX}sasl.jaas.config: {module or 'it'} has to be written by hand, as librdkafka's sasl.*"
            " properties."
        ]

    def _parse_number(self, key: str) -> float | None:
        text = self._properties.get(key)
        if text is None:
            return None
        if not re.fullmatch(r"\+?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[dDfF]?", text):
            hint = ": the text behind a # in such a line is part of the value" if "#" in text else ""
            raise ImportRefused(f"{key}={text} is not a number of 0 or more{hint}")
        return float(text.rstrip("dDfF"))

    def _parse_bytes(self, key: str) -> int:
        value = self._parse_number(key) or 0.0
        return int(self._properties[key]) if self._properties[key].isdecimal() else math.floor(min(value, LONG_MAX))

    def _parse_share(self, key: str) -> str:
        value = self._parse_number(key)
        if value is None or value > 1:
            raise ImportRefused(f"{key}={self._properties[key]}: a share between 0 and 1 is needed, for example 0.05")
        return f"{value:.15f}".rstrip("0").rstrip(".")

    def _parse_iso_duration(self, key: str) -> str:
        text = self._properties[key].upper()
        if parse_iso8601(text) is None:
            raise ImportRefused(f"{key}={text} is not a valid ISO 8601 duration, such as PT5M")
        return text

    def _write_line(self, indent: int, key: str, value: object) -> None:
        self._lines.append(f"{' ' * indent}{key}: {_yaml_scalar(value)}")

    def _write_comment(self, text: str, indent: int = 0) -> None:
        width = MAX_COLUMNS - indent - 2
        for part in text.split("\n"):  # a command is to be copied: as one line
            wrapped = textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False)
            self._lines += [f"{' ' * indent}# {line}" for line in ([part] if part.startswith(" ") else wrapped)]


def _convert_store(
    given: dict[str, str], taken: dict[str, str], store: str, names: tuple[str, ...], arguments: tuple[str, ...]
) -> list[str]:
    """Every client reads PEM files; Java's own formats have to be converted."""
    place = given.pop(f"ssl.{store}.location", None)
    kind = given.pop(f"ssl.{store}.type", "").upper()
    given.pop(f"ssl.{store}.password", None)
    if place is None:
        return []
    if kind == "PEM":
        taken.update(dict.fromkeys(names, place))
        return []
    settings = " and ".join(names)
    note = f"{ADMIN_PREFIX}ssl.{store}.location: Java's format has to become PEM, to be named here as {settings}:"
    if kind != "PKCS12" and not place.endswith((".p12", ".pfx")):
        note += f"\n  keytool -importkeystore -srckeystore {place} -destkeystore {store}.p12 -deststoretype PKCS12"
        place = f"{store}.p12"
    return [note + "".join(f"\n  openssl pkcs12 -in {place} {each}" for each in arguments)]


def _yaml_scalar(value: object) -> str:
    plain = isinstance(value, (int, float)) or (
        isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value)
    )
    quoted = not plain or str(value).lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return json.dumps(str(value), ensure_ascii=False) if quoted else str(value)  # JSON's text is YAML's too


def _one_line(text: str) -> str:
    return " ".join(text.split())
