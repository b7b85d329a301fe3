# What `serve`, `check` and a reload ask of a configuration beyond what its sections refuse by themselves: one function
# for each kind of fault, from the configuration to lines that begin with the key that is at fault. None connects to
# anything.
#
# What is large is imported when it is asked for: the parent process, which asks before it starts anything, stays small.

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from gateway.access_tokens.tokens import read_holders
from gateway.config import KNOWN_PROPERTIES, Settings, find_relay_loops
from gateway.listener_names import config_path
from gateway.name_hints import find_nearest_name
from gateway.plugins import QUOTA_SOURCES, PluginError, load_plugin, load_policy
from gateway.secret_key import read_secret
from gateway.tls.broker_tls import TLS_PROPERTIES, BrokerTls, make_broker_context
from gateway.tls.certificates import CertificateError, ListenerTls, find_unreadable_files, make_listener_context

Stage = Callable[[Settings], list[str]]
_Tls = TypeVar("_Tls", ListenerTls, BrokerTls)


def find_policy_faults(settings: Settings) -> list[str]:
    """Faults of the operator's own policies: reported here, not by a worker that fails on them."""
    problems = []
    for index, name in enumerate(settings.policies):
        try:
            load_policy(name)
        except PluginError as error:
            problems.append(f"policies.{index}: {str(error).removeprefix('policies: ')}")
    return problems


def find_address_loops(settings: Settings) -> list[str]:
    return find_relay_loops(settings.upstream, {config_path(name): own for name, own in settings.all_listeners.items()})


def find_certificate_faults(settings: Settings) -> list[str]:
    """Faults of certificates, of listeners and for brokers: reported here, since workers would accept no connections,
    or make none.
    """
    sections = {
        **{config_path(name): own.tls for name, own in settings.all_listeners.items()},
        "admin": settings.admin.tls,
    }
    problems = [line for path, tls in sections.items() for line in _find_tls_faults(path, tls, make_listener_context)]
    return [*problems, *_find_tls_faults("upstream", settings.upstream.tls, make_broker_context)]


def _find_tls_faults(path: str, tls: _Tls | None, make: Callable[[_Tls], object]) -> list[str]:
    """All files that can't be read, else the first fault of their contents."""
    if tls is None:
        return []
    lines = find_unreadable_files(tls.files_by_key())
    try:
        if not lines:
            make(tls)
    except CertificateError as error:
        lines.append(str(error))
    return [f"{path}.{line}" for line in lines]


def find_token_faults(settings: Settings) -> list[str]:
    """The fault of the token file, with which nobody could use the admin port."""
    return _find_file_fault("admin.token_file", settings.admin.token_file, read_holders)


def find_secret_key_faults(settings: Settings) -> list[str]:
    return _find_file_fault("secret_key_file", settings.secret_key_file, read_secret)


def find_chain_key_faults(settings: Settings) -> list[str]:
    return _find_file_fault("usage_log.chain_key_file", settings.usage_log.chain_key_file, read_secret)


def _find_file_fault(key: str, path: Path | None, read: Callable[[Path], object]) -> list[str]:
    try:
        if path is not None:
            read(path)
    except (OSError, ValueError) as error:
        return [f"{key}: {path}: {getattr(error, 'strerror', None) or error}"]
    return []


def find_credentials_faults(settings: Settings) -> list[str]:
    """Faults of the files in sections `authentication`: reported here, since no client could authenticate."""
    sections = {"authentication": settings.authentication}
    sections |= {
        f"{config_path(name)}.authentication": own.authentication for name, own in settings.all_listeners.items()
    }
    asked = {path: own for path, own in sections.items() if own is not None}
    if not asked:
        return []
    from gateway.control.sasl.authentication import find_file_faults

    return [f"{path}: {fault}" for path, own in asked.items() for fault in find_file_faults(own)]


def find_storage_faults(settings: Settings) -> list[str]:
    """The faults of plugins and properties of storage and of thresholds.source. Connects nowhere.

    `serve` leaves it to control, which gives up with the same line: the parent need not load all that.
    """
    problems = []
    if settings.storage is not None and not settings.storage.is_disabled:
        from gateway.control.storage.sources import StorageError, check_storage

        try:
            check_storage(settings, settings.storage)
        except StorageError as error:
            problems.append(str(error))
    if settings.thresholds.source:
        try:
            load_plugin(QUOTA_SOURCES, settings.thresholds.source, settings.thresholds.options)
        except PluginError as error:
            problems.append(f"thresholds: {error}")
    return problems


def find_property_faults(settings: Settings) -> list[str]:
    """The Kafka client's complaints about the properties that it gets. It reports only the first, so that one is
    removed and the client is asked again.
    """
    if not settings.upstream.properties:
        return []
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from gateway.kafka.access import InvalidProperties, check_credentials

    properties = settings.client_properties
    if _find_tls_faults("upstream", settings.upstream.tls, make_broker_context):  # told, and in plainer words
        properties = {key: value for key, value in properties.items() if key not in TLS_PROPERTIES}
    problems: list[str] = []
    try:
        check_credentials(properties)
    except InvalidProperties as error:
        problems.append(f"upstream.{error}")
        properties = {
            key: value
            for key, value in properties.items()
            if key != "security.protocol" and not key.startswith("sasl.")
        }
    while True:
        try:
            AdminClient(properties)
        except KafkaException as error:
            text = error.args[0].str()
        else:
            return problems
        if "SASL mechanism GSSAPI" in text and not properties.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
            wanted = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
            problems.append(
                f"upstream.security.protocol: {properties['security.protocol']} needs sasl.mechanism: {wanted}"
                " (without one librdkafka takes GSSAPI, which it is built without here)"
            )
            return problems
        key = next((key for key in settings.upstream.properties if key in properties and key in text), None)
        near = find_nearest_name(key, KNOWN_PROPERTIES) if key and text.startswith("No such") else None
        problems.append(f"upstream.{key or ''}".rstrip(".") + f": {text}" + (f"; did you mean {near}?" if near else ""))
        if key is None:
            return problems
        del properties[key]


# Before a gateway starts, and before another configuration is taken over. Control gives up with the lines of the rest.
TO_SERVE: Final[tuple[Stage, ...]] = (
    find_address_loops,
    find_policy_faults,
    find_certificate_faults,
    find_token_faults,
    find_secret_key_faults,
    find_chain_key_faults,
    find_credentials_faults,
)
TO_CHECK: Final[tuple[Stage, ...]] = (*TO_SERVE, find_storage_faults, find_property_faults)
