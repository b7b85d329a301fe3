# The meaning of each key of the configuration, by section and key: for the JSON Schema, which editors show, and for the
# reference that is made of it. Defaults and bounds are the models'. Text is plain; a test holds it against the models.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.config.settings import Settings

# Of listeners and of the admin port.
_TLS_DESCRIPTIONS: Final = {
    "ssl.keystore.location": "A PEM file with the gateway's certificate, intermediate certificates and private key."
    " With this key the port accepts only TLS.",
    "ssl.keystore.type": "PEM; nothing else is read.",
    "ssl.key.location": "The private key if it has a file of its own.",
    "ssl.key.password": "The key's password, as text or as {file: PATH}.",
    "ssl.truststore.location": "A PEM file with the CAs that sign clients' certificates.",
    "ssl.truststore.type": "PEM; nothing else is read.",
    "ssl.client.auth": "required: clients must present a certificate. requested: one that is presented must be valid.",
    "ssl.enabled.protocols": "Versions of TLS, in a list or separated by commas.",
    "ssl.principal.mapping.rules": "Which principals clients' certificates make, in Kafka's syntax (KIP-371).",
}
DESCRIPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Settings": {
        "upstream": "The cluster behind the gateway.",
        "listener": "Where clients connect.",
        "listeners": "Several listeners by name, each with the keys of listener, in place of it.",
        "authentication": "SASL that ends at the gateway. Without it SASL passes through to the brokers.",
        "admin": "The admin server: /metrics, REST, the console.",
        "health": "The health port: /healthz and /readyz, in plain HTTP, for probes of Kubernetes, load balancers and"
        " containers. It answers whatever the admin server has to do.",
        "workers": "Number of data processes, each of which uses one core at most; auto: one for each core that the"
        " gateway may use.",
        "thresholds": "Bytes per second of each broker, and of topics on each broker.",
        "client_quotas": "Quotas as {user: alice, client_id: app, producer_byte_rate: 1MiB}; <default> stands for the"
        " default user or client id.",
        "client_quotas_mode": "observe: only count what client quotas would delay.",
        "client_quotas_enforce_percent": "For how many percent of the clients quotas are enforced; the others are only"
        " counted.",
        "client_quotas_api": "Which side answers DescribeClientQuotas and AlterClientQuotas on the gateway's port.",
        "resource_groups": "Limits that tenants and namespaces share over all gateways.",
        "resourceUsagePublishTopicName": "The topic for reports of usage between gateways. All gateways of a cluster"
        " use the same one.",
        "resourceUsagePublishToTopic": "Whether gateways report their usage to each other, so that every limit applies"
        " over all of them.",
        "resourceUsagePublishIntervalInSecs": "Interval between reports. All gateways must use the same one.",
        "resource_usage_report_every": "Usage is reported at least once in this many intervals, even if it changed by"
        " less than a tenth.",
        "policies_store": "Where changes made at run time are kept.",
        "storage": "Storage protection, which keeps full disks from taking the cluster down.",
        "usage_log": "The usage log: one record per second and worker, for the audit.",
        "internal_topics": "none: no internal topics; the usage log stays in the spool, and limits apply to this"
        " gateway alone.",
        "internal": "Clients that are metered and never limited.",
        "mode": "observe: every policy only counts what it would do.",
        "acks0": "How acks=0 requests over a limit are handled. drop: the producer gets no sign of it.",
        "policies": "Policies of your own, each as module:factory.",
        "reject_code": "The error code of rejections: auto chooses by the client's software; else the number of a Kafka"
        " error.",
        "unknown_apis": "hide: leave APIs that are newer than this release out of the gateway's ApiVersions answer.",
        "log": "What the gateway logs, on standard error.",
        "limits": "Bounds of what clients may take: connections, time, memory, series.",
        "reload_interval": "How often the gateway looks whether this file, or that of a secret in it, has changed, to"
        " take the change over; 0: only when asked to.",
        "secret_key_file": "A file with a secret that all gateways of the cluster share, so that they agree on what"
        " clients must not be able to compute. Without it each gateway makes its own in the spool.",
        "gateway_id": "The gateway's name in usage records and for other gateways. Empty: host name and port of the"
        " first listener.",
        "shutdown_delay": "How long connections are accepted after SIGTERM, with /readyz at 503 already.",
        "drain_timeout": "How long requests in flight have from then on.",
    },
    "Upstream": {
        "bootstrap_servers": "host:port,host:port of the cluster.",
        "properties": "librdkafka's properties (security.*, sasl.*, ssl.*, socket.* and some others), written beside"
        " the other keys of this section. security.protocol and ssl.* hold for relayed connections too.",
        "metadata_refresh": "How often the gateway asks the cluster for brokers and topics.",
        "connect_timeout": "Time limit for each connection to a broker, its TLS handshake included.",
        "proxy_protocol": "Each connection to a broker begins with a PROXY protocol header that has the client's"
        " address.",
    },
    "Listener": {
        "host": "The address that the gateway listens on.",
        "port": "The bootstrap's port. Broker N listens on port + 1 + N, unless brokers or sni say otherwise.",
        "advertised_host": "The host name in the gateway's answers to clients. Empty: host. Required if host is"
        " 0.0.0.0.",
        "advertised_port": "The bootstrap's port as clients see it. Brokers' ports are shifted by the same difference.",
        "advertised_broker_host_pattern": "A host name with $(node_id) in it, if each broker has a name of its own.",
        "brokers": "By node id, a port, or {port, advertised_host, advertised_port}, for brokers that differ.",
        "sni": "All brokers on one port, told apart by the server name in the TLS handshake.",
        **_TLS_DESCRIPTIONS,
        "authentication": "The section authentication of this listener, in place of the one that holds for all.",
        "proxy_protocol": "Proxies that begin each connection with a PROXY protocol header.",
    },
    "BrokerPlace": {
        "port": "The broker's port.",
        "advertised_host": "Its host name in answers to clients.",
        "advertised_port": "Its port in answers to clients.",
    },
    "Sni": {
        "bootstrap_address": "The name, or name:port, that leads clients to any broker.",
        "advertised_broker_address_pattern": "The same with $(node_id) in it, for each broker.",
    },
    "ProxyProtocol": {
        "from": "Addresses and networks of the proxies. Their header is required; from others none is read.",
    },
    "Authentication": {
        "enabled": "false: SASL passes through to the brokers; for a single listener, or to switch the section off.",
        "sasl.enabled.mechanisms": "Mechanisms that clients may use, in a list or separated by commas. None: clients"
        " are known by their certificates.",
        "credentials_file": "Users and their SCRAM records; PLAIN passwords are checked by these too.",
        "credentials_command": "A program and its arguments, asked about users that aren't in the file.",
        "credentials_command_timeout": "How long that program may take.",
        "credentials_command_cache": "How long its answer holds.",
        "upstream_credentials_file": "By principal, or under default, the credentials for brokers. Without it the"
        " gateway doesn't authenticate to brokers for its clients.",
        "connections.max.reauth.ms": "How long a client's session lasts before it has to authenticate again; 0: as"
        " long as the connection.",
        "connection.failed.authentication.delay.ms": "Delay of the answer to a failed attempt.",
        "sasl.oauthbearer.jwks.endpoint.url": "The issuer's keys: https://… or file:///….",
        "ssl.truststore.location": "A PEM file with the CAs for that address. Without it, the system's.",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": "How often keys are fetched; also when a token names an unknown"
        " one.",
        "sasl.oauthbearer.expected.audience": "What the claim aud of a token must be: one of these.",
        "sasl.oauthbearer.expected.issuer": "What the claim iss of a token must be.",
        "sasl.oauthbearer.sub.claim.name": "The claim with the client's name.",
        "sasl.oauthbearer.clock.skew.seconds": "How much the issuer's clock and the gateway's may differ.",
    },
    "Health": {
        "host": "The address that the health port listens on. Without it, that of the admin server.",
        "port": "The health port. Without it, the admin server's port + 105.",
    },
    "Admin": {
        "host": "The address of the admin server. One that is reachable from other machines needs a token.",
        "port": "Its port.",
        "tokens": "Lines of a token file, or tokens of 16 characters or more, which give the role admin.",
        "token_file": "A file with a line for each token: its holder, role and hash. Read again when it changes.",
        "principals": "By principal of a client certificate, its role: viewer, operator or admin.",
        "anonymous": "What clients without credentials may read where there are some: viewer, or none.",
        "metrics": "open, or viewer: /metrics needs credentials as well.",
        **_TLS_DESCRIPTIONS,
        "hosts": "Further names under which clients may address the admin server.",
        "trusted_proxies": "Networks of the reverse proxies before the admin port; only their X-Forwarded-For says"
        " where a client is.",
        "open": "true: every client that reaches the port may change policies, without a token.",
    },
    "Thresholds": {
        "total.bytes.in.per.sec.threshold": "Bytes per second of each broker. Without it, topics' thresholds limit"
        " nothing.",
        "total.bytes.out.per.sec.threshold": "Bytes per second that consumers with consumer_byte_rate.shares share of"
        " each broker. It limits no other consumer.",
        "brokers": "Totals of particular brokers, by node id.",
        "topics": "Thresholds of topics, by name. The others share what these leave.",
        "on_exceed": "reject: by Kafka's one-minute rate. delay: slow producers down to their threshold.",
        "burst": "With on_exceed reject: seconds of a threshold that may pass above it at once. 0: no such bound.",
        "mode": "observe: only count what thresholds would reject or delay.",
        "enforce_percent": "For how many percent of the clients thresholds are enforced; the others are only counted.",
        "source": "The name of a plugin that provides total and topics instead.",
        "options": "Options of that plugin.",
        "interval": "How often it is asked.",
    },
    "BrokerThreshold": {
        "total.bytes.in.per.sec.threshold": "Bytes per second of this broker.",
        "total.bytes.out.per.sec.threshold": "Bytes per second that consumers with shares share of this broker.",
    },
    "TopicThreshold": {
        "bytes.in.per.sec.threshold": "Bytes per second of the topic on each broker.",
    },
    "ResourceGroups": {
        "topic_pattern": "How to read tenant and namespace from a topic's name: a template, or a regular expression"
        " with groups tenant and namespace. Empty: names carry no tenant.",
        "principal_pattern": "How to read the tenant from a principal if the topic's name doesn't give one.",
        "mode": "observe: only count what groups would delay.",
        "enforce_percent": "For how many percent of the clients groups are enforced; the others are only counted.",
        "groups": "Groups by name, each with its rates.",
        "tenants": "Which group a tenant belongs to.",
        "namespaces": "Which group a tenant/namespace belongs to, instead of its tenant's.",
    },
    "GroupRates": {
        "publishRateInBytes": "Bytes per second that the group may produce, over all gateways.",
        "publishRateInMsgs": "Messages per second that the group may produce.",
        "dispatchRateInBytes": "Bytes per second that the group may consume.",
        "dispatchRateInMsgs": "Messages per second that the group may consume.",
    },
    "PoliciesStore": {
        "topic": "The compacted topic for changes made at run time. All gateways of a cluster use the same one.",
        "replication": "Copies of it, if the gateway creates it. Without it 3, or the number of brokers if that is"
        " less.",
        "file": "The file for these changes with internal_topics: none. Without it policies.jsonl in the spool.",
    },
    "UsageLog": {
        "topic": "The topic for usage records; created if it is missing.",
        "spool_dir": "Folder to which records are written before they are published. Each gateway needs its own.",
        "max_spool_bytes": "Maximum size of the spool.",
        "retention": "How long published files are kept, so that the audit can read them too.",
        "partitions": "Partitions of the topic, if the gateway creates it.",
        "replication": "Copies of it. Without it 3, or the number of brokers if that is less.",
    },
    "Internal": {
        "principals": "Principals that are metered and never limited, as User:name.",
        "client_ids": "The same for every client that uses this client id, which any client can.",
        "clients": "The same for a principal together with a client id.",
    },
    "InternalClient": {
        "principal": "The principal, as User:name.",
        "client_id": "The client id that it must use.",
    },
    "Limits": {
        "max_request_bytes": "A larger request closes its connection.",
        "max_buffered_bytes": "Memory for all connections; beyond it the gateway stops reading.",
        "frame_timeout": "Time for a whole request from its first byte, plus a second for each min_rate bytes"
        " received.",
        "min_rate": "Bytes per second that a request has to bring: see frame_timeout.",
        "first_byte_timeout": "Time from the connection to the first 12 bytes of a request.",
        "authentication_timeout": "Time from the connection to the end of SASL, if brokers require it.",
        "idle_timeout": "Time without a byte from the client, or with an answer that the client doesn't read.",
        "max_connection_age": "How long a connection may last, give or take a tenth by chance, before the gateway"
        " closes it between two requests; 0: for ever.",
        "max_hold": "The longest time for which a Produce request is held because of a limit, however long its client"
        " waits for an answer.",
        "max_connections": "Connections of the gateway; it refuses more by a reset.",
        "max_connections_per_address": "Connections from one address, or IPv6 /64. Without it a tenth of"
        " max_connections, at least 100.",
        "max_connections_per_principal": "Authenticated connections of one principal.",
        "max_partitions_per_request": "Topics and partitions of one Produce request.",
        "max_admin_request": "Size of a request about configs or client quotas.",
        "max_client_keys": "Clients and topics per interval of the usage log and worker; the rest is counted as other.",
        "max_client_metrics": "Clients with series of their own in /metrics; the rest is counted as other.",
        "max_topic_metrics": "Pairs of broker and topic with series of their own in /metrics.",
    },
    "Log": {
        "format": "console for people; json: each line is a JSON object.",
        "level": "From which level on there are lines.",
        "levels": "The same for single loggers, by name.",
    },
    "Storage": {
        "source": "Where volumes come from: log-dirs, snapshots, prometheus, or the name of a plugin.",
        "check_interval": "How often the gateway observes the disks. PT0S turns it off.",
        "admin": "Another endpoint for these requests, in place of upstream's.",
        "min.available.bytes": "PAUSE while any volume has this much free or less.",
        "min.available.ratio": "The same as a share of the volume: 0.01 = 1 %.",
        "soft": "From here to hard the factor falls from 1 to 0. Of a list, the first that is reached counts.",
        "hard": "PAUSE while any volume is beyond this. Of a list, the first that is reached counts.",
        "volumes": "Limits of some volumes, in place of soft and hard; the first that matches counts.",
        "throttle.factor.fallback": "The factor while the disks can't be observed.",
        "throttle.factor.validity.duration": "How long the last valid factor stays in force when observations fail.",
        "mode": "observe: only count what storage protection would hold.",
        "scope": "Whom a volume at its limit holds: cluster, all producers; affected, topics with a replica on it.",
        "exempt_topics": "With scope: affected, topics that are never held; * stands for any characters.",
        "fenced_brokers": "Brokers that left with a volume at a limit: remember their last state, or ignore it.",
        "forget_after": "How long it is remembered, unless they are seen again before.",
        "new_broker_grace": "How long a broker that joins may be without a report of its volumes.",
        "snapshots": "With source: snapshots.",
        "prometheus": "With source: prometheus.",
        "options": "Options of a plugin.",
        "limit_policy": "The name of a plugin that says when a volume is too full.",
        "limit_policy_options": "Options of that plugin.",
        "factor_source": "The name of a plugin that provides the factor, in place of source and limits.",
    },
    "StorageAdmin": {
        "bootstrap_servers": "Brokers to ask; without it those of upstream.",
        "properties": "librdkafka's properties, written beside bootstrap_servers; they replace all of upstream's.",
    },
    "StorageLimit": {
        "type": "What is compared: free bytes, the free share of the volume, or used bytes.",
        "level": "Bytes, such as 10GB, or for MinFreePercentage a share, such as 0.2.",
    },
    "VolumeLimits": {
        "match": "The volumes: BROKER:LOG_DIR; * stands for any characters.",
        "soft": "In place of storage.soft.",
        "hard": "In place of storage.hard.",
    },
    "Snapshots": {
        "topic": "The compacted topic of volume snapshots; created if it is missing.",
        "max_age": "An active broker without a younger snapshot is unknown.",
        "fail_safe": "The state while a broker is unknown.",
        "replication": "Copies of the topic. Without it 3, or the number of brokers if that is less.",
    },
    "PrometheusQueries": {
        "url": "Address of the server, with the path under which it runs.",
        "available": "PromQL for free bytes, one series for each volume.",
        "size": "PromQL for the size, one series for each volume.",
        "broker_label": "The label that contains the broker's id.",
        "volume_label": "The volume's name in messages and metrics.",
        "broker_pattern": "A regular expression; its group broker, or its first group, is the id.",
        "brokers": "By the label's value, the id, if the label contains none.",
        "expected_brokers": "Ids of the brokers, if the cluster can't be asked.",
        "max_age": "Maximum age of a sample.",
        "timeout": "Time limit for one observation.",
        "username": "User, with password_file.",
        "password_file": "A file with the password, read for each observation.",
        "bearer_token_file": "A file with a token in place of user and password.",
        "ca_file": "A PEM file with the CAs of the server's certificate. Without it, the system's.",
    },
}
# Bounds of a type that is converted first (a size, a port): pydantic has their names and not JSON Schema's.
_BOUND_NAMES: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def described_schema() -> dict[str, Any]:
    """The configuration's JSON Schema, each key with its meaning."""
    schema: dict[str, Any] = _rename_bounds(Settings.model_json_schema(by_alias=True))
    for name, section in (("Settings", schema), *schema["$defs"].items()):
        for key, field in section.get("properties", {}).items():
            field.pop("title", None)
            if "$ref" in field:  # beside it older validators see nothing
                field["allOf"] = [{"$ref": field.pop("$ref")}]
            if text := DESCRIPTIONS.get(name, {}).get(key):
                field["description"] = text
    return schema


def _rename_bounds(value: Any) -> Any:
    if isinstance(value, list):
        return [_rename_bounds(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {_BOUND_NAMES.get(key, key): _rename_bounds(each) for key, each in value.items()}
