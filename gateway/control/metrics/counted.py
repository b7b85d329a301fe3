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
        "The same by listener.",
    ),
    Family(
        "requests",
        "counter",
        ("api",),
        "Requests from clients; an API appears with its first request, Produce at the start.",
    ),
    Family("answers_local", "counter", (), "Requests that the gateway answered itself."),
    Family("answers_merged", "counter", (), "Brokers' answers into which the gateway merged rejected partitions."),
    Family("requests_malformed", "counter", (), "Requests that could not be parsed; each closed its connection."),
    Family("tls_handshakes_failed", "counter", (), "Client connections that ended because the TLS handshake failed."),
    Family(
        "server_names_refused",
        "counter",
        ("reason",),
        "Of these, those on listeners with [SNI](configuration.md#sni-all-brokers-on-one-port): `no_server_name` or "
        "`unknown_server_name`.",
    ),
    Family("mutes", "counter", (), "Times the gateway held a connection's Produce requests for a throttle time."),
    Family("fetches_delayed", "counter", (), "Fetch requests held by a client quota or a resource group."),
    Family(
        "fetch_delay_ms",
        "counter",
        (),
        "Time for which Fetch requests were held, in milliseconds.",
    ),
    Family(
        "fetches_would_be_delayed",
        "counter",
        (),
        "Fetch requests that limits would have held where they are only observed.",
    ),
    Family(
        "disconnects",
        "counter",
        ("cause",),
        "Client connections that ended: a [cause](security.md#everything-costs-and-everything-ends) of the "
        "gateway's, or `client`, `upstream`, `error`, `drain`.",
    ),
    Family(
        "connections_refused",
        "counter",
        ("limit",),
        "Client connections refused by `limits.max_connections` or `limits.max_connections_per_address`.",
    ),
    Family(
        "admin_requests_refused",
        "counter",
        ("reason",),
        "Refused requests to the [admin port](rest.md#who-may-ask): no credentials (`missing`), a wrong `token` or "
        "too many (`limited`), a `certificate` without a role, too low a `role`, another site's page (`origin`), no "
        "`csrf` token, a failed `tls` handshake.",
    ),
    Family(
        "admin_connections_refused",
        "counter",
        ("reason",),
        "Connections to the admin port without a place or too slow: too many of one `address` or in all "
        "(`connections`), no first byte (`silent`) or whole `request` in time, a `response` not taken.",
    ),
    Family(
        "accept_pauses",
        "counter",
        (),
        "Pauses in accepting connections, for lack of file descriptors or memory.",
    ),
    Family(
        "internal_errors",
        "counter",
        ("where",),
        "The gateway's own errors in control, each of which ended one client's request only: `accept`, "
        "`admin_server`, `kafka_admin`, `sasl`, `worker_message`. Please report the traceback in the log.",
    ),
    Family("connections", "gauge", ("worker",), "Open client connections."),
    Family("muted_connections", "gauge", ("worker",), "Client connections whose Produce requests are held now."),
    Family("buffered_bytes", "gauge", ("worker",), "Bytes from clients and brokers held in memory."),
)
CLUSTER: Final = (
    Family(
        "authentications_failed",
        "counter",
        (),
        "Clients that failed to authenticate, at a broker or [at the "
        "gateway](security.md#authentication-at-the-gateway).",
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
        "Times an answer left out a broker for which the gateway has no listener.",
    ),
    Family(
        "answers_not_followed",
        "counter",
        (),
        "Answers that may contain brokers' addresses but could not be parsed, so that addresses were not hidden.",
    ),
    Family(
        "topic_ids_unknown",
        "counter",
        (),
        "Times the gateway did not find a topic id's name in time: Produce gets UNKNOWN_TOPIC_ID, a Fetch answer "
        "counts for no group.",
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
        "Requests to change policies at run time: `accepted`, `unchanged`, `refused` or `failed`.",
    ),
    Family("policy_version", "gauge", (), "Version of the policies in force; each change at run time raises it."),
    Family(
        "policy_store_up", "gauge", (), "1 while the gateway knows all changes made at run time and accepts new ones."
    ),
    Family(
        "config_reload",
        "counter",
        ("outcome",),
        "Times the gateway read its configuration file again: `applied`, `unchanged`, `refused` (faults in the file) "
        "or `failed` (not read or not taken over).",
    ),
    Family("config_last_reload_successful", "gauge", (), "0 if the last attempt was refused or failed, else 1."),
    Family(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        (),
        "Unix time at which the file was last accepted, the start included.",
    ),
    Family("config_keys_pending", "gauge", (), "Keys of the file whose new values take a restart."),
)
USAGE_LOG: Final = (
    Family("usage_log_intervals", "counter", (), "Intervals received from workers."),
    Family("usage_log_records_written", "counter", (), "Usage records written to the spool."),
    Family("usage_log_records_published", "counter", (), "Usage records acknowledged by the usage topic."),
    Family(
        "usage_log_dropped",
        "counter",
        ("reason",),
        "Usage data given up: intervals that form no valid record (`invalid`), records that the broker refused "
        "(`refused`).",
    ),
    Family(
        "usage_log_spool_errors",
        "counter",
        (),
        "Failed attempts to write to the spool; the data is kept and written later.",
    ),
    Family("usage_log_backlog_bytes", "gauge", (), "Bytes of the spool that the usage topic has not acknowledged."),
    Family("usage_log_spool_bytes", "gauge", (), "Total size of the spool."),
    Family("usage_log_queued_intervals", "gauge", (), "Intervals not yet written to the spool."),
)
ITSELF: Final = (
    Family("worker_up", "gauge", ("worker",), "1 while the worker is connected to control."),
    Family("lacking", "gauge", ("part",), "1 while the gateway runs without this part; `/readyz` gives the reason."),
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
        "Workers that died before their last report; the audit marks them as incomplete.",
    ),
)
