# The section `limits`: bounds of what clients may take.

from __future__ import annotations

from gateway.config.sections.fields import ByteRate, Count, Seconds, Section, Size, setting


class Limits(Section):
    # Kafka's socket.request.max.bytes.
    max_request_bytes: Size = setting(
        100 * 2**20, "A larger request closes its connection.", live=True, workers=True, ge=1024, le=2**31 - 1
    )
    max_buffered_bytes: Size = setting(
        2**30, "Memory for all connections; beyond it the gateway stops reading.", live=True, workers=True, ge=2**20
    )
    # A Java client gives its request up after 30 s.
    frame_timeout: Seconds = setting(
        60.0,
        "Time for a whole request from its first byte, plus a second for each min_rate bytes received.",
        live=True,
        workers=True,
        gt=0,
    )
    min_rate: ByteRate = setting(
        64 * 2**10, "Bytes per second that a request has to bring: see frame_timeout.", live=True, workers=True, ge=1
    )
    # Clients send their first request at once.
    first_byte_timeout: Seconds = setting(
        30.0, "Time from the connection to the first 12 bytes of a request.", live=True, workers=True, gt=0
    )
    # Clients give up after 30 s.
    authentication_timeout: Seconds = setting(
        60.0, "Time from the connection to the end of SASL, if brokers require it.", live=True, workers=True, gt=0
    )
    # Brokers' connections.max.idle.ms.
    idle_timeout: Seconds = setting(
        600.0,
        "Time without a byte from the client, or with an answer that the client doesn't read.",
        live=True,
        workers=True,
        gt=0,
    )
    max_connection_age: Seconds = setting(
        0.0,
        "How long a connection may last, give or take a tenth by chance, before the gateway closes it between two"
        " requests; 0: for ever.",
        live=True,
        workers=True,
        ge=0,
    )
    # Most clients wait less: see policies.client_timeouts.
    max_hold: Seconds = setting(
        50.0,
        "The longest time for which a Produce request is held because of a limit, however long its client waits"
        " for an answer.",
        live=True,
        workers=True,
        ge=1,
        le=60,
    )
    max_connections: Count = setting(
        20_000, "Connections of the gateway; it refuses more by a reset.", live=True, ge=1, unit="connections"
    )
    max_connections_per_address: Count | None = setting(
        None,
        "Connections from one address, or IPv6 /64. Without it a tenth of max_connections, at least 100.",
        live=True,
        ge=1,
        unit="connections",
    )
    max_connections_per_principal: Count = setting(
        10_000, "Authenticated connections of one principal.", live=True, workers=True, ge=1, unit="connections"
    )
    max_partitions_per_request: Count = setting(
        10_000,
        "Topics and partitions of one Produce request.",
        live=True,
        workers=True,
        ge=1,
        le=1_000_000,
        unit="topics and partitions",
    )
    # Control reads it whole: 1 MiB are 15,000 quotas and 0.6 s of its time.
    max_admin_request: Size = setting(
        2**20, "Size of a request about configs or client quotas.", live=True, workers=True, ge=1024, le=16 * 2**20
    )
    # Clients can multiply pairs of principal and client id at will; each costs several series in /metrics.
    max_client_keys: Count = setting(
        10_000,
        "Clients and topics per interval of the usage log and worker; the rest is counted as other.",
        live=True,
        workers=True,
        ge=1,
        le=1_000_000,
        unit="clients and topics",
    )
    max_client_metrics: Count = setting(
        500,
        "Clients with series of their own in /metrics; the rest is counted as other.",
        ge=0,
        le=100_000,
        unit="clients",
    )
    # Each pair has 13 series under a threshold alone.
    max_topic_metrics: Count = setting(
        1000,
        "Pairs of broker and topic with series of their own in /metrics.",
        ge=0,
        le=100_000,
        unit="pairs of broker and topic",
    )

    @property
    def connections_per_address(self) -> int:
        """By default a tenth of all: one address may stand for a hundred clients behind a NAT, and a few that nobody
        knows must not take all places. At least 100, which a machine with many producers needs.
        """
        return min(self.max_connections, self.max_connections_per_address or max(100, self.max_connections // 10))
