# `produce-gateway import-strimzi FILE`: what a cluster's Strimzi quotas plugin was told, printed as our YAML. FILE is a
# broker's server.properties or a Kafka resource (spec.kafka.quotas, spec.kafka.config). The property names are those of
# the released plugin, of [DISK] and of [035]. The command says what it can't take over: in the output as a comment
# where it belongs, on standard error where somebody has to act.
#
# Knows no cluster: nothing is asked, only translated. Its output has passed gateway.config. Sources:
# kafka-quotas-plugin 0.2 to 0.4, the Kafka resource's API (QuotasPluginStrimzi).

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway import config, yaml_text
from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.cli_support.suggest import find_nearest_name
from gateway.kafka import java_properties
from gateway.system.sockets import address_text
from policies.quotas.store import MAX_PERCENT
from policies.units import parse_iso8601

PLUGIN_PREFIX: Final = "client.quota.callback.static."
CLASS_KEY: Final = "client.quota.callback.class"
PLUGIN_CLASSES: Final = (
    "io.strimzi.kafka.quotas.StaticQuotaCallback",
    "org.apache.kafka.server.quota.StaticQuotaCallback",
)
ADMIN_PREFIX: Final = PLUGIN_PREFIX + "kafka.admin."
BOOTSTRAP_KEY: Final = ADMIN_PREFIX + "bootstrap.servers"
PRODUCE, FETCH, REQUEST = PLUGIN_PREFIX + "produce", PLUGIN_PREFIX + "fetch", PLUGIN_PREFIX + "request"
EXCLUDED_KEY: Final = PLUGIN_PREFIX + "excluded.principal.name.list"
CHECK_SECONDS: Final = PLUGIN_PREFIX + "storage.check-interval"  # the plugin's
CHECK_ISO: Final = PLUGIN_PREFIX + "storage.check.interval"  # [DISK]
MIN_BYTES: Final = PLUGIN_PREFIX + "storage.per.volume.limit.min.available.bytes"
MIN_RATIO: Final = PLUGIN_PREFIX + "storage.per.volume.limit.min.available.ratio"
FALLBACK_KEY: Final = PLUGIN_PREFIX + "throttle.factor.fallback"
VALIDITY_KEY: Final = PLUGIN_PREFIX + "throttle.factor.validity.duration"
SOFT, HARD = (
    PLUGIN_PREFIX + "storage.soft",
    PLUGIN_PREFIX + "storage.hard",
)  # up to plugin 0.2: used bytes of all volumes together
FREE_BYTES, FREE_PERCENT = ".min-free-bytes", ".min-free-percent"  # [035], behind SOFT and HARD
CLIENT_ID_KEY: Final = PLUGIN_PREFIX + "kafka.clientIdPrefix"
KNOWN_KEYS: Final = (
    PRODUCE, FETCH, REQUEST, EXCLUDED_KEY, CHECK_SECONDS, CHECK_ISO, MIN_BYTES, MIN_RATIO, FALLBACK_KEY, VALIDITY_KEY,
    CLIENT_ID_KEY,
    *(each + what for each in (SOFT, HARD) for what in ("", FREE_BYTES, FREE_PERCENT)),
)  # fmt: skip
# spec.kafka.quotas of `type: strimzi` -> the property that the operator makes of it
QUOTA_FIELDS: Final = {
    "producerByteRate": PRODUCE,
    "consumerByteRate": FETCH,
    "minAvailableBytesPerVolume": MIN_BYTES,
    "minAvailableRatioPerVolume": MIN_RATIO,
    "excludedPrincipals": EXCLUDED_KEY,
}
MAX_COLUMNS: Final = 118
LONG_MAX: Final = 2**63 - 1  # "no limit", as doubles beyond it are
_PER_USER_NOTE: Final = "each user, where the plugin's was shared by all clients of a broker"


class ImportRefused(Exception):
    """Nothing to print; the text is one line: the fault, its place, and a right value."""


class ListenerEndpoint(NamedTuple):
    """A listener of the brokers: its bootstrap address, its security.protocol, what to add by hand."""

    address: str = ""
    protocol: str = "PLAINTEXT"
    notes: tuple[str, ...] = ()


class ImportInput(NamedTuple):
    """A file's contents: properties by their names, the brokers' listeners with the best for clients first, remarks for
    standard error.
    """

    properties: dict[str, str]
    listeners: list[ListenerEndpoint]
    remarks: list[str]


class ImportResult(NamedTuple):
    text: str  # YAML
    remarks: list[str]


def main(argv: list[str]) -> int:
    """Run the command; the result is the exit code."""
    parser = CommandParser(
        prog="produce-gateway import-strimzi",
        description="Print a gateway configuration made from that of Strimzi's quotas plugin.",
    )
    parser.add_argument(
        "file", metavar="FILE", help="server.properties, or a Kafka resource as YAML or JSON; - is stdin"
    )
    parser.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        default="",
        help="the brokers' listener that clients' connections go to, where FILE names another one or none",
    )
    parser.add_argument(
        "--aggregate-limits",
        action="store_true",
        help="take storage.soft and storage.hard, which limited a broker's volumes together, as limits of each volume",
    )
    add_examples(
        parser,
        "server.properties --bootstrap-servers kafka:9092 > gateway.yaml",
        "- < kafka-resource.yaml                          # kubectl get kafka NAME -o yaml",
    )
    args = parser.parse_args(argv)
    name = "standard input" if args.file == "-" else args.file
    try:
        result = convert_settings(
            _read_file(args.file), name, args.bootstrap_servers, aggregate_limits=args.aggregate_limits
        )
    except ImportRefused as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    for remark in result.remarks:
        print(f"{name}: {remark}", file=sys.stderr)
    print(result.text, end="")
    return 0


def convert_settings(
    text: str, name: str, bootstrap_servers: str = "", *, aggregate_limits: bool = False
) -> ImportResult:
    """Translate a file's text; its `name` decides between properties and YAML where the text doesn't.

    Raises:
        ImportRefused: there is nothing of the plugin, or its settings can't be.
    """
    given = _parse_resource(text) if _is_kafka_resource(text, name) else _parse_properties(text)
    properties = {key: value.strip() for key, value in given.properties.items()}
    if not any(key.startswith(PLUGIN_PREFIX) for key in properties):
        raise ImportRefused(
            f"there is no {PLUGIN_PREFIX}* in it, and no spec.kafka.quotas of type strimzi: nothing to import"
        )
    writer = _YamlWriter(properties, list(given.remarks), aggregate_limits)
    writer.check_property_names()
    printed = writer.write_yaml(name, bootstrap_servers, given.listeners)
    try:
        config.parse_settings(printed, "the resulting YAML")
    except config.ConfigError as error:
        raise ImportRefused("; ".join(error.lines)) from error
    return ImportResult(printed, writer.remarks)


def _parse_properties(text: str) -> ImportInput:
    try:
        return ImportInput(java_properties.parse_properties(text), [], [])
    except java_properties.InvalidPropertiesFile as error:
        raise ImportRefused(str(error)) from error


def _read_file(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except OSError as error:
        raise ImportRefused(f"can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ImportRefused(f"not UTF-8 text: {error.reason} at byte {error.start}") from error


def _is_kafka_resource(text: str, name: str) -> bool:
    if name.endswith((".yaml", ".yml", ".json")):
        return True
    return not name.endswith(".properties") and bool(re.search(r'^[\s{-]*"?kind"?\s*:', text, re.MULTILINE))


def _parse_resource(text: str) -> ImportInput:
    try:
        documents = [each for each in yaml_text.load_all_yaml(text, "YAML") if isinstance(each, dict)]
    except yaml_text.YamlError as error:
        raise ImportRefused(str(error)) from error
    documents = [item for each in documents for item in (each.get("items") or [each]) if isinstance(item, dict)]
    kafkas = [each for each in documents if each.get("kind") == "Kafka"]
    if len(kafkas) != 1:
        names = ", ".join(str(_get_nested(each, "metadata", "name")) for each in kafkas)
        raise ImportRefused(
            f"one resource of kind: Kafka is needed, and there are {len(kafkas)} ({names}): keep the one that is meant"
            if kafkas
            else "there is no resource of kind: Kafka in it"
        )
    kafka = _get_nested(kafkas[0], "spec", "kafka")
    settings, quotas = _get_nested(kafka, "config"), _get_nested(kafka, "quotas")
    properties = (
        {str(key): _property_text(value) for key, value in settings.items()} if isinstance(settings, dict) else {}
    )
    remarks = _convert_quotas(quotas, properties) if isinstance(quotas, dict) else []
    return ImportInput(properties, _find_listeners(kafkas[0], kafka), remarks)


def _convert_quotas(quotas: dict[Any, Any], properties: dict[str, str]) -> list[str]:
    """spec.kafka.quotas into the properties that the operator makes of it; it wins over spec.kafka.config there too."""
    if quotas.get("type") != "strimzi":
        return [
            f"spec.kafka.quotas of type {quotas.get('type')}: left out: those are Kafka's own quotas of each client,"
            " which the brokers go on enforcing behind a gateway"
        ]
    remarks = []
    for field, value in quotas.items():
        if field == "type" or value is None:
            continue
        key = QUOTA_FIELDS.get(field)
        if key is None:
            remarks.append(f"spec.kafka.quotas.{field}: unknown{_suggest_key(str(field), QUOTA_FIELDS)}: left out")
            continue
        if key in properties:
            remarks.append(f"{key}: left out: spec.kafka.quotas.{field} replaces it")
        properties[key] = _convert_principals(value, remarks) if key == EXCLUDED_KEY else _property_text(value)
    properties[CLASS_KEY] = PLUGIN_CLASSES[0]
    return remarks


def _convert_principals(value: Any, remarks: list[str]) -> str:
    """The list of the resource as the property has it; the operator takes any text into it."""
    taken = []
    for each in value if isinstance(value, list) else [value]:
        name = _property_text(each).strip()
        where = f"spec.kafka.quotas.excludedPrincipals: {name!r} is not a valid principal, such as User:name"
        if re.match("User:.", name):
            taken.append(name)
        elif name and ":" not in name:
            taken.append(f"User:{name}")
            remarks.append(f"{where}: taken as User:{name}")
        else:
            remarks.append(f"{where}: left out")
    return ";".join(taken)


def _find_listeners(resource: Any, kafka: Any) -> list[ListenerEndpoint]:
    """Of internal ones Strimzi's bootstrap service, of others the address in the resource's status. Internal ones come
    first, of them those without TLS, since they need no more than the address.
    """
    name, namespace = _get_nested(resource, "metadata", "name"), _get_nested(resource, "metadata", "namespace")
    listeners, states = _get_nested(kafka, "listeners"), _get_nested(resource, "status", "listeners")
    outside = {
        _get_nested(each, "name"): _property_text(_get_nested(each, "bootstrapServers"))
        for each in (states if isinstance(states, list) else ())
    }
    found = []
    for listener in listeners if isinstance(listeners, list) else ():
        is_internal, tls = _get_nested(listener, "type") == "internal", bool(_get_nested(listener, "tls"))
        host = f"{name}-kafka-bootstrap" + (f".{namespace}.svc" if namespace else "")
        internal = address_text(host, _get_nested(listener, "port")) if is_internal and name else ""
        address = internal or outside.get(_get_nested(listener, "name"), "")
        if address:
            endpoint = ListenerEndpoint(address, *_listener_security(listener, _property_text(name) or "CLUSTER", tls))
            found.append((not is_internal, tls, endpoint))
    return [endpoint for *_, endpoint in sorted(found, key=lambda each: each[:2])]


def _listener_security(listener: Any, cluster: str, tls: bool) -> tuple[str, tuple[str, ...]]:
    """A listener's security.protocol, and what else the gateway needs there that the resource doesn't hold."""
    kind = _get_nested(listener, "authentication", "type")
    sasl = kind in ("scram-sha-512", "oauth") or (
        kind == "custom" and bool(_get_nested(listener, "authentication", "sasl"))
    )
    notes = []
    if tls:
        notes.append(
            f"ssl.ca.location: name a file with the brokers' CA: ca.crt in the secret {cluster}-cluster-ca-cert, or the"
            " CA of the listener's own certificate."
        )
    if kind == "tls":
        notes.append(
            "ssl.certificate.location, ssl.key.location: the listener wants a client certificate: user.crt and user.key"
            " in the secret of a KafkaUser for the gateway."
        )
    if sasl:
        mechanism = {"scram-sha-512": "SCRAM-SHA-512", "oauth": "OAUTHBEARER"}.get(kind, "the listener's")
        notes.append(
            f"sasl.mechanism ({mechanism}) with its credentials: the gateway's own clients need a user of their own."
        )
    return f"{'SASL_' if sasl else ''}{'SSL' if tls else 'PLAINTEXT'}", tuple(notes)


class _YamlWriter:
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
                self.remarks.append(f"{key}: unknown{_suggest_key(key, KNOWN_KEYS)}: left out")

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


def _get_nested(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _property_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _yaml_scalar(value: object) -> str:
    plain = isinstance(value, (int, float)) or (
        isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value)
    )
    quoted = not plain or str(value).lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return json.dumps(str(value), ensure_ascii=False) if quoted else str(value)  # JSON's text is YAML's too


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _suggest_key(key: str, known: Iterable[str]) -> str:
    by_end = {each.removeprefix(PLUGIN_PREFIX): each for each in known}
    near = find_nearest_name(key.removeprefix(PLUGIN_PREFIX), by_end, 0.7)
    return f" (did you mean {by_end[near]}?)" if near else ""
