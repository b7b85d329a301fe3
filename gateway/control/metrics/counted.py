# Events at the gateway and its present state, as counters and gauges that need no collector.

from __future__ import annotations

from typing import Final

from gateway.control.metrics.family import MetricFamily

TRAFFIC: Final = (
    MetricFamily("connections_accepted", "counter", (), "Client connections handed to a worker."),
    MetricFamily(
        "listener_connections",
        "counter",
        ("listener",),
        "The same by listener.",
    ),
    MetricFamily(
        "requests",
        "counter",
        ("api",),
        "Requests from clients; an API appears with its first.",
    ),
    MetricFamily("answers_local", "counter", (), "Requests that the gateway answered itself."),
    MetricFamily(
        "answers_merged", "counter", (), "Brokers' answers into which the gateway merged rejected partitions."
    ),
    MetricFamily("requests_malformed", "counter", (), "Requests that could not be parsed; each closed its connection."),
    MetricFamily("tls_handshakes_failed", "counter", (), "Failed TLS handshakes of clients."),
    MetricFamily(
        "server_names_refused",
        "counter",
        ("reason",),
        "Of these, those on listeners with [SNI](configuration.md#sni-all-brokers-on-one-port): `no_server_name` or "
        "`unknown_server_name`.",
    ),
    MetricFamily("mutes", "counter", (), "Times a connection's Produce requests were held for a throttle time."),
    MetricFamily("fetches_delayed", "counter", (), "Fetch requests held by a client quota or a resource group."),
    MetricFamily(
        "fetch_delay_ms",
        "counter",
        (),
        "Time for which Fetch requests were held, in milliseconds.",
    ),
    MetricFamily(
        "fetches_would_be_delayed",
        "counter",
        (),
        "Fetch requests that observed limits would have held.",
    ),
    MetricFamily(
        "disconnects",
        "counter",
        ("cause",),
        "Client connections that ended: a [cause](security.md#everything-costs-and-everything-ends) of the "
        "gateway's, or `client`, `upstream`, `error`, `drain`.",
    ),
    MetricFamily(
        "connections_refused",
        "counter",
        ("limit",),
        "Client connections refused by this limit (`max_connections…`).",
    ),
    MetricFamily(
        "admin_requests_refused",
        "counter",
        ("reason",),
        "Refused requests to the [admin port](rest.md#who-may-ask): no credentials (`missing`), a wrong `token` or "
        "too many (`limited`), a `certificate` without a role, too low a `role`, another site's page (`origin`), no "
        "`csrf` token, a failed `tls` handshake.",
    ),
    MetricFamily(
        "admin_connections_refused",
        "counter",
        ("reason",),
        "Connections to the admin port: too many of one `address` or in all (`connections`), no first byte (`silent`) "
        "or whole `request` in time, a `response` not taken.",
    ),
    MetricFamily(
        "accept_pauses",
        "counter",
        (),
        "Pauses in accepting connections, for lack of file descriptors or memory.",
    ),
    MetricFamily(
        "internal_errors",
        "counter",
        ("where",),
        "The gateway's own errors in control, each of which ended one client's request: `accept`, `admin_server`, "
        "`kafka_admin`, `sasl`, `worker_message`. Please report the traceback in the log.",
    ),
    MetricFamily("connections", "gauge", ("worker",), "Open client connections."),
    MetricFamily("muted_connections", "gauge", ("worker",), "Client connections whose Produce requests are held now."),
    MetricFamily("buffered_bytes", "gauge", ("worker",), "Bytes from clients and brokers held in memory."),
)
CLUSTER: Final = (
    MetricFamily(
        "authentications_failed",
        "counter",
        (),
        "Clients that failed to authenticate, at a broker or [at the "
        "gateway](security.md#authentication-at-the-gateway).",
    ),
    MetricFamily(
        "upstream_tls_handshakes_failed",
        "counter",
        (),
        "Failed TLS handshakes with brokers.",
    ),
    MetricFamily(
        "upstream_failed",
        "counter",
        (),
        "Connections to brokers that could not be opened, or that brokers closed first.",
    ),
    MetricFamily(
        "brokers_withheld",
        "counter",
        (),
        "Answers that left out a broker without a listener.",
    ),
    MetricFamily(
        "answers_not_followed",
        "counter",
        (),
        "Answers that could not be parsed, so brokers' addresses in them were not hidden.",
    ),
    MetricFamily(
        "topic_ids_unknown",
        "counter",
        (),
        "Topic ids without a name in time: Produce gets UNKNOWN_TOPIC_ID, a Fetch answer counts for no group.",
    ),
    MetricFamily(
        "metadata_refreshes", "counter", ("outcome",), "Metadata requests to the cluster, by outcome: `ok` or `failed`."
    ),
    MetricFamily("upstream_up", "gauge", (), "1 if the last metadata request to the cluster succeeded."),
    MetricFamily("upstream_brokers", "gauge", (), "Brokers listed in the cluster's metadata."),
    MetricFamily(
        "upstream_brokers_without_listener",
        "gauge",
        (),
        "Brokers whose port the gateway can't open, withheld from clients.",
    ),
)
CHANGES: Final = (
    MetricFamily(
        "policy_changes",
        "counter",
        ("outcome",),
        "Requests to change policies: `accepted`, `unchanged`, `refused` or `failed`.",
    ),
    MetricFamily("policy_version", "gauge", (), "Version of the policies in force."),
    MetricFamily("policy_store_up", "gauge", (), "1 while the gateway knows all changes and accepts new ones."),
    MetricFamily(
        "config_reload",
        "counter",
        ("outcome",),
        "Reloads of the configuration file: `applied`, `unchanged`, `refused` (faults in it) or `failed` (not read or "
        "not taken over).",
    ),
    MetricFamily("config_last_reload_successful", "gauge", (), "0 if the last attempt was refused or failed, else 1."),
    MetricFamily(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        (),
        "Unix time at which the file was last accepted.",
    ),
    MetricFamily("config_keys_pending", "gauge", (), "Keys of the file whose new values take a restart."),
)
USAGE_LOG: Final = (
    MetricFamily("usage_log_intervals", "counter", (), "Intervals received from workers."),
    MetricFamily("usage_log_records_written", "counter", (), "Usage records written to the spool."),
    MetricFamily("usage_log_records_published", "counter", (), "Usage records acknowledged by the usage topic."),
    MetricFamily(
        "usage_log_dropped",
        "counter",
        ("reason",),
        "Usage data given up: `invalid` intervals, records that the broker `refused`.",
    ),
    MetricFamily(
        "usage_log_spool_errors",
        "counter",
        (),
        "Failed writes to the spool; the data is kept.",
    ),
    MetricFamily(
        "usage_log_backlog_bytes", "gauge", (), "Bytes of the spool that the usage topic has not acknowledged."
    ),
    MetricFamily("usage_log_spool_bytes", "gauge", (), "Total size of the spool."),
    MetricFamily("usage_log_queued_intervals", "gauge", (), "Intervals not yet written to the spool."),
)
ITSELF: Final = (
    MetricFamily("worker_up", "gauge", ("worker",), "1 while the worker is connected to control."),
    MetricFamily(
        "lacking", "gauge", ("part",), "1 while the gateway runs without this part; `/readyz` gives the reason."
    ),
    MetricFamily("build_info", "gauge", ("version", "python"), "Always 1; the labels are versions."),
    MetricFamily(
        "config_info",
        "gauge",
        ("gateway", "upstream", "internal_topics", "usage_topic"),
        "Always 1; the labels are names from the configuration.",
    ),
    MetricFamily("worker_restarts", "counter", ("worker",), "Times the worker died and was restarted."),
    MetricFamily(
        "workers_lost",
        "counter",
        (),
        "Workers that died before their last report.",
    ),
)
