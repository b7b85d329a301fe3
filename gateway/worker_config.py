# What workers get of the configuration: the settings whose fields in gateway/config/ say `workers=True`, with their
# types and defaults. Written by `python -m tools.worker_config`; write nothing here. What each means is on its field.

from __future__ import annotations

from typing import Literal

import msgspec


class WorkerUpstream(msgspec.Struct, frozen=True, kw_only=True):
    connect_timeout: float = 3.0  # seconds
    proxy_protocol: Literal["none", "v1", "v2"] = "none"


class WorkerInternalClient(msgspec.Struct, frozen=True, kw_only=True):
    principal: str
    client_id: str


class WorkerInternal(msgspec.Struct, frozen=True, kw_only=True):
    principals: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    clients: tuple[WorkerInternalClient, ...] = ()


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_request_bytes: int = 104857600  # bytes
    max_buffered_bytes: int = 1073741824  # bytes
    frame_timeout: float = 60.0  # seconds
    min_rate: int = 65536  # bytes per second
    first_byte_timeout: float = 30.0  # seconds
    authentication_timeout: float = 60.0  # seconds
    idle_timeout: float = 600.0  # seconds
    max_connection_age: float = 0.0  # seconds
    max_hold: float = 50.0  # seconds
    max_connections_per_principal: int = 10000  # connections
    max_partitions_per_request: int = 10000  # topics and partitions
    max_admin_request: int = 1048576  # bytes
    max_client_keys: int = 10000  # clients and topics


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    upstream: WorkerUpstream = WorkerUpstream()
    internal: WorkerInternal = WorkerInternal()
    mode: Literal["enforce", "observe"] = "enforce"
    acks0: Literal["delay", "drop"] = "delay"
    policies: tuple[str, ...] = ()
    reject_code: Literal["auto"] | int = "auto"  # Kafka's error code
    unknown_apis: Literal["pass", "hide"] = "pass"
    limits: WorkerLimits = WorkerLimits()
