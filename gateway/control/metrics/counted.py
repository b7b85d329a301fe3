# Events at the gateway and its present state, as counters and gauges that need no collector.

from __future__ import annotations

from typing import Final

from gateway.control.metrics.family import counter, gauge

TRAFFIC: Final = (
    counter("connections_accepted", "Client connections handed to a worker."),
    counter("listener_connections", "The same by listener.", ("listener",)),
    counter("requests", "Requests from clients; an API appears with its first.", ("api",)),
    counter("answers_local", "Requests that the gateway answered itself."),
    counter("answers_merged", "Brokers' answers into which the gateway merged rejected partitions."),
    counter("requests_malformed", "Requests that could not be parsed; each closed its connection."),
    counter("tls_handshakes_failed", "Failed TLS handshakes of clients."),
    counter(
        "server_names_refused",
        "Of these, those on listeners with [SNI](configuration.md#sni-all-brokers-on-one-port): `no_server_name` or "
        "`unknown_server_name`.",
        ("reason",),
    ),
    counter("mutes", "Times a connection's Produce requests were held for a throttle time."),
    counter("fetches_delayed", "Fetch requests held by a client quota or a resource group."),
    counter("fetch_delay_ms", "Time for which Fetch requests were held, in milliseconds."),
    counter("fetches_would_be_delayed", "Fetch requests that observed limits would have held."),
    counter(
        "disconnects",
        "Client connections that ended: a [cause](security.md#everything-costs-and-everything-ends) of the "
        "gateway's, or `client`, `upstream`, `error`, `drain`.",
        ("cause",),
    ),
    counter("connections_refused", "Client connections refused by this limit (`max_connections…`).", ("limit",)),
    counter(
        "admin_requests_refused",
        "Refused requests to the [admin port](rest.md#who-may-ask): no credentials (`missing`), a wrong `token` or "
        "too many (`limited`), a `certificate` without a role, too low a `role`, another site's page (`origin`), no "
        "`csrf` token, a failed `tls` handshake.",
        ("reason",),
    ),
    counter(
        "admin_connections_refused",
        "Connections to the admin port: too many of one `address` or in all (`connections`), no first byte (`silent`) "
        "or whole `request` in time, a `response` not taken.",
        ("reason",),
    ),
    counter("accept_pauses", "Pauses in accepting connections, for lack of file descriptors or memory."),
    counter(
        "internal_errors",
        "The gateway's own errors in control, each of which ended one client's request: `accept`, `admin_server`, "
        "`kafka_admin`, `sasl`, `worker_message`. Please report the traceback in the log.",
        ("where",),
    ),
    gauge("connections", "Open client connections.", ("worker",)),
    gauge("muted_connections", "Client connections whose Produce requests are held now.", ("worker",)),
    gauge("buffered_bytes", "Bytes from clients and brokers held in memory.", ("worker",)),
)
CLUSTER: Final = (
    counter(
        "authentications_failed",
        "Clients that failed to authenticate, at a broker or [at the "
        "gateway](security.md#authentication-at-the-gateway).",
    ),
    counter("upstream_tls_handshakes_failed", "Failed TLS handshakes with brokers."),
    counter("upstream_failed", "Connections to brokers that could not be opened, or that brokers closed first."),
    counter("brokers_withheld", "Answers that left out a broker without a listener."),
    counter("answers_not_followed", "Answers that could not be parsed, so brokers' addresses in them were not hidden."),
    counter(
        "topic_ids_unknown",
        "Topic ids without a name in time: Produce gets UNKNOWN_TOPIC_ID, a Fetch answer counts for no group.",
    ),
    counter("metadata_refreshes", "Metadata requests to the cluster, by outcome: `ok` or `failed`.", ("outcome",)),
    gauge("upstream_up", "1 if the last metadata request to the cluster succeeded."),
    gauge("upstream_brokers", "Brokers listed in the cluster's metadata."),
    gauge("upstream_brokers_without_listener", "Brokers whose port the gateway can't open, withheld from clients."),
)
CHANGES: Final = (
    counter(
        "policy_changes", "Requests to change policies: `accepted`, `unchanged`, `refused` or `failed`.", ("outcome",)
    ),
    gauge("policy_version", "Version of the policies in force."),
    gauge("policy_store_up", "1 while the gateway knows all changes and accepts new ones."),
    counter(
        "config_reload",
        "Reloads of the configuration file: `applied`, `unchanged`, `refused` (faults in it) or `failed` (not read or "
        "not taken over).",
        ("outcome",),
    ),
    gauge("config_last_reload_successful", "0 if the last attempt was refused or failed, else 1."),
    gauge("config_last_reload_success_timestamp_seconds", "Unix time at which the file was last accepted."),
    gauge("config_keys_pending", "Keys of the file whose new values take a restart."),
)
USAGE_LOG: Final = (
    counter("usage_log_intervals", "Intervals received from workers."),
    counter("usage_log_records_written", "Usage records written to the spool."),
    counter("usage_log_records_published", "Usage records acknowledged by the usage topic."),
    counter(
        "usage_log_dropped", "Usage data given up: `invalid` intervals, records that the broker `refused`.", ("reason",)
    ),
    counter("usage_log_spool_errors", "Failed writes to the spool; the data is kept."),
    gauge("usage_log_backlog_bytes", "Bytes of the spool that the usage topic has not acknowledged."),
    gauge("usage_log_spool_bytes", "Total size of the spool."),
    gauge("usage_log_queued_intervals", "Intervals not yet written to the spool."),
)
ITSELF: Final = (
    gauge("worker_up", "1 while the worker is connected to control.", ("worker",)),
    gauge("lacking", "1 while the gateway runs without this part; `/readyz` gives the reason.", ("part",)),
    gauge("build_info", "Always 1; the labels are versions.", ("version", "python")),
    gauge(
        "config_info",
        "Always 1; the labels are names from the configuration.",
        ("gateway", "upstream", "internal_topics", "usage_topic"),
    ),
    counter("worker_restarts", "Times the worker died and was restarted.", ("worker",)),
    counter("workers_lost", "Workers that died before their last report."),
)
