# The section `limits`: bounds of what clients may take.

from __future__ import annotations

from pydantic import Field

from gateway.config.sections.fields import Seconds, Section, Size


class Limits(Section):
    max_request_bytes: Size = Field(default=100 * 2**20, ge=1024, le=2**31 - 1)  # Kafka's socket.request.max.bytes
    # Over all connections; beyond it the gateway stops reading.
    max_buffered_bytes: Size = Field(default=2**30, ge=2**20)
    # For a whole request from its first byte, and as long again as its bytes take at `min_rate`; a Java client gives
    # its request up after 30 s.
    frame_timeout: Seconds = Field(default=60.0, gt=0)
    min_rate: Size = Field(default=64 * 2**10, ge=1)  # bytes per second
    # From the connection to the head of its first request; clients send that at once.
    first_byte_timeout: Seconds = Field(default=30.0, gt=0)
    # From the connection to the end of SASL, where brokers want it; clients give up after 30 s.
    authentication_timeout: Seconds = Field(default=60.0, gt=0)
    # Without a byte from the client, and of an answer that it doesn't read: brokers' connections.max.idle.ms.
    idle_timeout: Seconds = Field(default=600.0, gt=0)
    # From the connection on, give or take a tenth by chance; later it is closed between two requests. 0: none.
    max_connection_age: Seconds = Field(default=0.0, ge=0)
    # That a Produce request waits for a limit, however long its client does: see policies.client_timeouts.
    max_hold: Seconds = Field(default=50.0, ge=1, le=60)
    max_connections: int = Field(default=20_000, ge=1)
    max_connections_per_address: int | None = Field(default=None, ge=1)  # None: see connections_per_address
    max_connections_per_principal: int = Field(default=10_000, ge=1)
    max_partitions_per_request: int = Field(default=10_000, ge=1, le=1_000_000)  # of one Produce request
    # Of a request that control reads whole (configs and client quotas): 1 MiB are 15,000 quotas and 0.6 s of its time.
    max_admin_request: Size = Field(default=2**20, ge=1024, le=16 * 2**20)
    # Pairs of principal and client id, which clients can multiply at will: per interval in the usage log, and in all in
    # /metrics, where each costs several series; the rest is counted as `other`.
    max_client_keys: int = Field(default=10_000, ge=1, le=1_000_000)
    max_client_metrics: int = Field(default=500, ge=0, le=100_000)
    # Pairs of broker and topic that have series in /metrics, 13 under a threshold alone.
    max_topic_metrics: int = Field(default=1000, ge=0, le=100_000)

    @property
    def connections_per_address(self) -> int:
        """By default a tenth of all: one address may stand for a hundred clients behind a NAT, and a few that nobody
        knows must not take all places. At least 100, which a machine with many producers needs.
        """
        return min(self.max_connections, self.max_connections_per_address or max(100, self.max_connections // 10))
