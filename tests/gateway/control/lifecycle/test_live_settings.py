# Each setting that a reload takes over: a worker that runs goes by its new value, or it is control's own.

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args, get_origin

import msgspec
import pytest
import trio
from pydantic.fields import FieldInfo

from gateway import channel
from gateway.config import ConfigError, Settings, parse_settings
from gateway.config.changes import is_live
from gateway.config.reading.keys import unwrap_type
from gateway.config.sections.fields import marks_of
from gateway.control.workers.snapshots import worker_settings
from gateway.data.worker.worker import DataWorker
from tests.gateway.config.every_setting import every_setting, is_number
from tests.gateway.control.lifecycle.test_reload import Control

KeyPath = tuple[str, ...]
# As far down as a reload takes over what is there as a whole; those of several listeners are those of one.
LIVE: Final = {
    path: field
    for path, field in every_setting()
    if is_live(path) and not is_live(path[:-1]) and path[0] != "listeners"
}
TLS: Final = {"ssl.keystore.location": "a.pem", "ssl.client.auth": "required", "ssl.truststore.location": "ca.pem"}
# Beside what is changed, where it needs something.
AROUND: Final[dict[str, Any]] = {
    "listener": TLS | {"sni": {"bootstrap_address": "kafka.a", "advertised_broker_address_pattern": "b-$(node_id).a"}},
}
BASE: Final[dict[str, Any]] = {"upstream": {"bootstrap_servers": "b:9092"}}
# Another value than the default, or before and after, of what is neither a number nor one of a few words.
VALUES: Final[dict[str, Any]] = {
    "thresholds.brokers": {1: {"total.bytes.in.per.sec.threshold": 7}},
    "thresholds.topics": {"clicks": {"bytes.in.per.sec.threshold": 7}},
    "client_quotas": [{"user": "alice", "producer_byte_rate": 7}],
    "resource_groups": {"groups": {"gold": {"publishRateInBytes": 7}}, "tenants": {"acme": "gold"}},
    "internal": {"clients": [{"principal": "User:mirror", "client_id": "mirror"}]},
    "reject_code": 19,
    "listener.advertised_host": "gw.example",
    "listener.advertised_broker_host_pattern": "b-$(node_id).example",
    "listener.brokers.NAME.advertised_host": "b.example",
    "listener.sni.bootstrap_address": "kafka.b",
    "listener.sni.advertised_broker_address_pattern": "b-$(node_id).b",
    "listener.proxy_protocol": {"from": ["10.0.0.0/8"]},
    "listener.ssl.keystore.location": "b.pem",
    "listener.ssl.key.location": "key.pem",
    "listener.ssl.key.password": "secret",
    "listener.ssl.truststore.location": "ca2.pem",
    "listener.ssl.client.auth": "requested",
    "listener.ssl.enabled.protocols": ["TLSv1.3"],
    "listener.ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/, DEFAULT",
    "log.levels": {"gateway.policy": "debug"},
}
# Those that workers needn't know; reload.py gives them to the parts of control that go by them.
CONTROL_S_OWN: Final = {
    "upstream.metadata_refresh",
    "listener.advertised_port", "listener.brokers.NAME.advertised_host", "listener.brokers.NAME.advertised_port",
    "listener.advertised_host", "listener.advertised_broker_host_pattern",  # with TLS workers know them, as names
    "listener.proxy_protocol", "limits.max_connections", "limits.max_connections_per_address",
    "reload_interval", "log.level", "log.levels", "shutdown_delay", "drain_timeout",
}  # fmt: skip


def document(path: KeyPath, value: Any) -> dict[str, Any]:
    """A configuration with that value there, and what has to be around it."""
    around = AROUND.get(path[0], {})
    if "brokers" in path or any("advertised" in part for part in path[1:2]):
        around = {}  # which SNI leaves no room for
    made: dict[str, Any] = {**BASE, path[0]: dict(around)} if around else dict(BASE)
    node = made
    for part in path[:-1]:
        key: Any = 1 if part == "NAME" else part
        node[key] = node = dict(node.get(key, {}))
    if value is not None:
        node[path[-1]] = value
    return made


def other_values(path: KeyPath, field: FieldInfo) -> Iterable[Any]:
    name, kind = ".".join(path), unwrap_type(field.annotation)
    if name in VALUES:
        return [VALUES[name]]
    if get_origin(kind) is Literal:
        return [each for each in get_args(kind) if each != field.default]
    if is_number(kind):
        default = field.default or 0
        return [value for value in (default + 1, default / 2, default * 2, 7) if value != default]
    raise AssertionError(f"{name}: write another value than its default into VALUES")


def changed(path: KeyPath) -> tuple[str, str]:
    """A configuration, and one that differs from it there alone. JSON is YAML."""
    for value in other_values(path, LIVE[path]):
        texts = json.dumps(document(path, None)), json.dumps(document(path, value))
        try:
            if parse_settings(texts[0]) != parse_settings(texts[1]):
                return texts
        except ConfigError:
            continue
    raise AssertionError(f"{'.'.join(path)}: no value that is tried is a valid one: write one into VALUES")


class RunningWorker:
    """A worker that has been told some settings, as through its channel."""

    def __init__(self, settings: Settings) -> None:
        self.worker = DataWorker(cast("Any", None), 0)
        self.tell(worker_settings(settings, b""))

    def tell(self, message: channel.ToWorker) -> None:
        self.worker.handle_control_message(channel.decode_for_worker(msgspec.msgpack.encode(message)))

    @property
    def settings(self) -> channel.WorkerSettings:
        return self.worker.configured_plane.world.settings

    def close(self) -> None:
        self.worker.configured_plane.connections.reactor._poller.close()


def value_at(settings: Any, path: KeyPath) -> Any:
    for key in path:
        settings = getattr(settings, key)
    return settings


@pytest.mark.parametrize("path", LIVE, ids=".".join)
async def test_a_running_worker_goes_by_it_or_it_is_control_s_own(
    nursery: trio.Nursery, path: KeyPath, tmp_path: Path
) -> None:
    before, after = changed(path)
    control = Control(tmp_path, before)
    nursery.start_soon(control.service.run)
    await control.service.loaded.wait()
    worker = RunningWorker(control.context.settings)
    had = worker.settings
    outcome, keys = await control.reload(after)
    assert (outcome, len(keys)) == ("applied", 1)
    told = [message for messages in control.told.all for message in messages]
    name = ".".join(path)
    assert bool(told) != (name in CONTROL_S_OWN)
    if told:
        worker.tell(channel.SnapshotBundle(tuple(told)))
    wanted = worker_settings(parse_settings(after), b"")
    assert worker.settings == wanted
    if marks_of(LIVE[path]).workers:
        assert value_at(worker.settings, path) == msgspec.convert(
            value_at(parse_settings(after), path), type(value_at(wanted, path)), from_attributes=True
        )
        assert value_at(worker.settings, path) != value_at(had, path)
    worker.close()
