# Events at the gateway and its present state, as counters and gauges that need no collector.

from __future__ import annotations

from typing import Final

from gateway.control.metrics.family import Family

TRAFFIC: Final = (
    Family("connections_accepted", "counter", (), "Client connections handed to a worker."),
    Family(
        "listener_connections",
        "counter",
        ("listener",),
        "The same by listener; `default` is the one of the section `listener`.",
    ),
    Family(
        "requests",
        "counter",
        ("api",),
        "Requests from clients. An API is there from its first request on, Produce from the start.",
    ),
    Family("answers_local", "counter", (), "Requests that the gateway answered itself."),
    Family("answers_merged", "counter", (), "Broker answers into which the gateway merged rejected partitions."),
    Family("requests_malformed", "counter", (), "Requests that could not be parsed. Each closed its connection."),
    Family("tls_handshakes_failed", "counter", (), "Connections that ended because the TLS handshake failed."),
    Family(
        "server_names_refused",
        "counter",
        ("reason",),
        "Of these, the ones on listeners with [SNI](configuration.md#sni-all-brokers-on-one-port): `no_server_name` "
        "or `unknown_server_name`.",
    ),
    Family("mutes", "counter", (), "Times the gateway held a connection's Produce requests for a throttle time."),
    Family("fetches_delayed", "counter", (), "Fetch requests held by a client quota or a resource group."),
    Family(
        "fetch_delay_ms",
        "counter",
        (),
        "Time for which client quotas and resource groups held Fetch requests, in milliseconds.",
    ),
    Family(
        "fetches_would_be_delayed",
        "counter",
        (),
        "Fetch requests that client quotas or resource groups would have held where they are only observed.",
    ),
    Family(
        "disconnects",
        "counter",
        ("cause",),
        "Client connections that ended, by cause: those of "
        "[security](security.md#everything-costs-and-everything-ends), and `client`, `upstream`, `error`, `age` or "
        "`drain`.",
    ),
    Family(
        "connections_refused",
        "counter",
        ("limit",),
        "Client connections refused because of `limits.max_connections` or `limits.max_connections_per_address`.",
    ),
    Family(
        "admin_requests_refused",
        "counter",
        ("reason",),
        "Requests to the [admin port](rest.md#who-may-ask) that were refused, by reason: no credentials (`missing`), a "
        "wrong token (`token`), too many of these from the address (`limited`), a certificate without a role "
        "(`certificate`), too low a role (`role`), a page of another site (`origin`), a page without its session's "
        "CSRF token (`csrf`); and connections whose TLS handshake failed (`tls`).",
    ),
    Family(
        "admin_connections_refused",
        "counter",
        ("reason",),
        "Connections to the admin port that got no place, lost it to another one, or were too slow, by reason: too "
        "many of one address (`address`) or in all (`connections`), no first byte in time (`silent`), no whole request "
        "(`request`), or a response that the client did not take (`response`).",
    ),
    Family(
        "accept_pauses",
        "counter",
        (),
        "Pauses in accepting connections, because of too many open files or too little memory.",
    ),
    Family(
        "internal_errors",
        "counter",
        ("where",),
        "Errors of the gateway's own in control, each of which ended one client's request and nothing else: in taking "
        "a connection in (`accept`), in the [admin server](rest.md) (`admin_server`), in requests of Kafka's admin "
        "APIs (`kafka_admin`), in authentication (`sasl`), or in what a worker reported (`worker_message`). The log "
        "has a traceback: please report it.",
    ),
    Family("connections", "gauge", ("worker",), "Open client connections."),
    Family("muted_connections", "gauge", ("worker",), "Client connections whose Produce requests are currently held."),
    Family("buffered_bytes", "gauge", ("worker",), "Bytes from clients and brokers held in memory."),
)
CLUSTER: Final = (
    Family(
        "authentications_failed",
        "counter",
        (),
        "Clients that failed to authenticate: at the gateway, where [SASL ends "
        "there](security.md#authentication-at-the-gateway), else at a broker.",
    ),
    Family(
        "upstream_tls_handshakes_failed",
        "counter",
        (),
        "Connections to brokers that ended because the TLS handshake failed.",
    ),
    Family(
        "upstream_failed",
        "counter",
        (),
        "Connections to brokers that could not be opened or that the broker closed first.",
    ),
    Family(
        "brokers_withheld",
        "counter",
        (),
        "Times a broker was left out of an answer because the gateway has no listener for it.",
    ),
    Family(
        "answers_not_followed",
        "counter",
        (),
        "Answers that may contain broker addresses but that the gateway could not parse, so that addresses in them "
        "were not hidden.",
    ),
    Family(
        "topic_ids_unknown",
        "counter",
        (),
        "Times the gateway could not find the name of a request's topic ids in time. It answers such Produce "
        "partitions with UNKNOWN_TOPIC_ID, and charges such Fetch answers to no resource group.",
    ),
    Family(
        "metadata_refreshes", "counter", ("outcome",), "Metadata requests to the cluster, by outcome: `ok` or `failed`."
    ),
    Family("upstream_up", "gauge", (), "1 if the last metadata request to the cluster succeeded."),
    Family("upstream_brokers", "gauge", (), "Brokers listed in the cluster's metadata."),
    Family(
        "upstream_brokers_without_listener",
        "gauge",
        (),
        "Brokers withheld from clients because the gateway can't open their port.",
    ),
)
CHANGES: Final = (
    Family(
        "policy_changes",
        "counter",
        ("outcome",),
        "Requests to change policies at run time, by outcome: `accepted`, `unchanged`, `refused` or `failed`.",
    ),
    Family("policy_version", "gauge", (), "Version of the policies in force. It grows with every change at run time."),
    Family(
        "policy_store_up", "gauge", (), "1 while the gateway knows all changes made at run time and accepts new ones."
    ),
    Family(
        "config_reload",
        "counter",
        ("outcome",),
        "Times the gateway read its configuration file again, by outcome: `applied`, `unchanged`, `refused` (the file "
        "can't be used; the old configuration stays) or `failed` (it could not be read or taken over just now).",
    ),
    Family("config_last_reload_successful", "gauge", (), "1 unless the last attempt was refused or failed."),
    Family(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        (),
        "Unix time at which the file was last read and accepted, at the start or later.",
    ),
    Family(
        "config_keys_pending", "gauge", (), "Keys of the file whose new values don't hold before the gateway restarts."
    ),
)
USAGE_LOG: Final = (
    Family("usage_log_intervals", "counter", (), "Intervals received from workers."),
    Family("usage_log_records_written", "counter", (), "Usage records written to the spool."),
    Family("usage_log_records_published", "counter", (), "Usage records acknowledged by the usage topic."),
    Family(
        "usage_log_dropped",
        "counter",
        ("reason",),
        "Usage data that was given up, by reason: intervals that don't form a valid record (`invalid`), records that "
        "the broker refused (`refused`).",
    ),
    Family(
        "usage_log_spool_errors",
        "counter",
        (),
        "Failed attempts to write to the spool. The data is kept and written later.",
    ),
    Family("usage_log_backlog_bytes", "gauge", (), "Bytes in the spool that the usage topic has not acknowledged yet."),
    Family("usage_log_spool_bytes", "gauge", (), "Total size of the spool."),
    Family(
        "usage_log_queued_intervals", "gauge", (), "Intervals received from workers and not yet written to the spool."
    ),
)
ITSELF: Final = (
    Family("worker_up", "gauge", ("worker",), "1 while the worker is connected to control."),
    Family(
        "lacking", "gauge", ("part",), "1 while the gateway runs without this part of it; `/readyz` gives the reason."
    ),
    Family("build_info", "gauge", ("version", "python"), "Always 1; the labels carry the versions."),
    Family(
        "config_info",
        "gauge",
        ("gateway", "upstream", "internal_topics", "usage_topic"),
        "Always 1; the labels carry the names from the configuration.",
    ),
    Family("worker_restarts", "counter", ("worker",), "Times a worker died and was started again."),
    Family(
        "workers_lost",
        "counter",
        (),
        "Workers that died before they reported their last interval. The audit reports them as incomplete.",
    ),
)
