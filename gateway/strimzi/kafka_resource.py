# A Kafka resource as the plugin's properties: spec.kafka.quotas and spec.kafka.config, as the operator makes them, and
# the brokers' listeners. Asks no cluster.

from __future__ import annotations

import re
from typing import Any

from gateway import yaml_text
from gateway.strimzi.plugin_settings import (
    CLASS_KEY,
    EXCLUDED_KEY,
    PLUGIN_CLASSES,
    QUOTA_FIELDS,
    ImportInput,
    ImportRefused,
    ListenerEndpoint,
    property_text,
    suggest_key,
)
from gateway.system.sockets import address_text


def parse_resource(text: str) -> ImportInput:
    """The contents of the one Kafka resource in this YAML or JSON.

    Raises:
        ImportRefused: there is none, or more than one.
    """
    try:
        documents = [each for each in yaml_text.load_all_yaml(text, "YAML") if isinstance(each, dict)]
    except yaml_text.YamlError as error:
        raise ImportRefused(str(error)) from error
    lists = [each["items"] if isinstance(each.get("items"), list) else [each] for each in documents]
    documents = [item for items in lists for item in items if isinstance(item, dict)]
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
        {str(key): property_text(value) for key, value in settings.items()} if isinstance(settings, dict) else {}
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
            remarks.append(f"spec.kafka.quotas.{field}: unknown{suggest_key(str(field), QUOTA_FIELDS)}: left out")
            continue
        if key in properties:
            remarks.append(f"{key}: left out: spec.kafka.quotas.{field} replaces it")
        properties[key] = _convert_principals(value, remarks) if key == EXCLUDED_KEY else property_text(value)
    properties[CLASS_KEY] = PLUGIN_CLASSES[0]
    return remarks


def _convert_principals(value: Any, remarks: list[str]) -> str:
    """The list of the resource as the property has it; the operator takes any text into it."""
    taken = []
    for each in value if isinstance(value, list) else [value]:
        name = property_text(each).strip()
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
        property_text(_get_nested(each, "name")): property_text(_get_nested(each, "bootstrapServers"))
        for each in (states if isinstance(states, list) else ())
    }
    found = []
    for listener in listeners if isinstance(listeners, list) else ():
        is_internal, tls = _get_nested(listener, "type") == "internal", bool(_get_nested(listener, "tls"))
        host = f"{name}-kafka-bootstrap" + (f".{namespace}.svc" if namespace else "")
        internal = address_text(host, _get_nested(listener, "port")) if is_internal and name else ""
        address = internal or outside.get(property_text(_get_nested(listener, "name")), "")
        if address:
            endpoint = ListenerEndpoint(address, *_listener_security(listener, property_text(name) or "CLUSTER", tls))
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


def _get_nested(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
