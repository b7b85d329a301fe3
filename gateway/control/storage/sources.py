# The section `storage` as objects: the source, the limits, and the view that control has. Opens no connection but for
# the snapshots' reader, so `check` can try the rest. Knows no worker and no schedule.

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from gateway import plugins
from gateway.config import Settings, Storage, VolumeLimits
from gateway.kafka.access import parse_access
from gateway.kafka.internal_topic import TopicError
from gateway.plugins import PluginError
from gateway.storage.guarding import GuardedPolicy
from gateway.storage.log_dirs import active_brokers
from gateway.storage.snapshots import SnapshotReader, volume_topic
from gateway.storage.source_view import VolumeSourceView
from gateway.storage.topic_view import VolumeTopicView
from gateway.storage.views import StorageView
from policies.storage import (
    FactorKeeper,
    FactorSource,
    LimitPolicy,
    MinAvailable,
    PlaceLimits,
    SnapshotView,
    SoftHard,
    VolumeLimit,
    VolumeSource,
)

log = logging.getLogger("gateway.storage")

REQUEST_TIMEOUT_S: Final = 10.0  # for one question to the cluster


class StorageError(Exception):
    """Storage protection can't be set up; one line: the key, the fault, and a right value."""


def make_storage_view(settings: Settings, storage: Storage) -> StorageView:
    """Control's view of the disks.

    Raises:
        StorageError: a plugin or a property can't be used.
    """
    policy, source = make_policy_and_source(settings, storage)
    if source is None:
        return _make_snapshots(settings, storage, policy)
    keeper = FactorKeeper(storage.validity, storage.fallback, storage.check_interval)
    return VolumeSourceView(
        source,
        None if storage.factor_source else policy,
        keeper,
        time.monotonic,
        places=storage.scope == "affected",
        forget_after_s=storage.forget_after if storage.remembers_brokers else None,
        grace_s=storage.new_broker_grace,
    )


def make_policy_and_source(
    settings: Settings, storage: Storage
) -> tuple[LimitPolicy, VolumeSource | FactorSource | None]:
    """Limits and source; source None: the snapshots' reader. Connects nowhere, unless an operator's plugin does.

    Raises:
        StorageError: a plugin or a property can't be used.
    """
    try:
        policy = _make_policy(storage)
    except (PluginError, ValueError) as error:
        raise StorageError(f"storage: {error}") from error
    try:
        return policy, _make_source(settings, storage)
    except PluginError as error:
        own = f"{plugins.VOLUME_SOURCES} {storage.source}: "  # the built-in names need no search
        if storage.factor_source or storage.is_plugin_source or not str(error).startswith(own):
            raise StorageError(f"storage: {error}") from error
        section = "prometheus" if storage.source == "prometheus" else "admin" if storage.admin else ""
        where = f"storage.{section}" if section else "upstream"
        raise StorageError(f"{where}: {str(error).removeprefix(own)}") from error


def check_storage(settings: Settings, storage: Storage) -> None:
    """Check that `make_storage_view` would succeed, without a connection.

    Raises:
        StorageError: it would not.
    """
    _, source = make_policy_and_source(settings, storage)
    if source is None:
        _check_properties(settings, storage)


def _check_properties(settings: Settings, storage: Storage) -> None:
    """Check the properties of the snapshots' reader and of the list of active brokers: two clients with different
    rules.
    """
    admin = settings.storage_admin
    try:
        parse_access(admin.properties)
        if admin.properties:
            AdminClient({**admin.properties, "log_level": 0})  # without a server: it has nowhere to connect to
    except (ValueError, KafkaException) as error:
        text = error.args[0].str() if isinstance(error, KafkaException) else error
        raise StorageError(f"{'storage.admin' if storage.admin else 'upstream'}: {text}") from error


def _make_policy(storage: Storage) -> LimitPolicy:
    if storage.limit_policy:
        return GuardedPolicy(
            plugins.load_plugin(plugins.LIMIT_POLICIES, storage.limit_policy, storage.limit_policy_options)
        )
    if storage.min_available_bytes is not None:
        return MinAvailable(bytes=storage.min_available_bytes)
    if storage.min_available_ratio is not None:
        return MinAvailable(ratio=storage.min_available_ratio)
    places = [PlaceLimits(each.match, *_limits_of(each)) for each in storage.volumes]
    return SoftHard(*_limits_of(storage), places)


def _limits_of(section: Storage | VolumeLimits) -> tuple[list[VolumeLimit], list[VolumeLimit]]:
    """Soft and hard ones."""
    return [each.limit for each in section.soft], [each.limit for each in section.hard]


def _make_source(settings: Settings, storage: Storage) -> Any:
    """Built-in sources are loaded in the same way as plugins."""
    if storage.factor_source:
        return plugins.load_plugin(plugins.FACTOR_SOURCES, storage.factor_source, storage.options)
    if storage.source == "snapshots":
        return None
    admin, options = settings.storage_admin, storage.options
    offers: dict[str, Any] = {"active_brokers": _make_list_active(settings)}
    if storage.source == "log-dirs":
        offers |= {
            "properties": admin.properties,
            "bootstrap_servers": admin.bootstrap_servers,
            "timeout_s": REQUEST_TIMEOUT_S,
        }
    elif storage.source == "prometheus" and storage.prometheus is not None:
        options = storage.prometheus.model_dump(exclude={"timeout"}, exclude_none=True)
        options["timeout_s"] = storage.prometheus.timeout
    return plugins.load_plugin(plugins.VOLUME_SOURCES, storage.source, options, offers)


def _make_list_active(settings: Settings) -> Callable[[], frozenset[int]]:
    admin = settings.storage_admin
    return functools.partial(active_brokers, admin.properties, admin.bootstrap_servers, REQUEST_TIMEOUT_S)


def _make_snapshots(settings: Settings, storage: Storage, policy: LimitPolicy) -> VolumeTopicView:
    admin, section = settings.storage_admin, storage.snapshot_settings
    client = {
        **admin.properties,
        "bootstrap.servers": admin.bootstrap_servers,
        "client.id": f"produce-gateway-{settings.gateway_name}",
    }
    topic = volume_topic(client, section.topic, section.replication)
    reported: set[str] = set()

    def prepare() -> bool:
        try:
            wrong = topic.ensure_topic()
        except TopicError as error:
            if str(error) not in reported:
                log.warning("volume snapshots: %s", error)
            reported.add(str(error))
            return False
        if wrong:
            log.warning("volume snapshots: %s", wrong)
        return True

    _check_properties(settings, storage)
    reader = SnapshotReader(client, section.topic)
    # One listing may fail, and the next one take its time, before the list is too old.
    list_age = max(section.max_age, 2 * storage.check_interval + REQUEST_TIMEOUT_S)
    view = SnapshotView(
        section.max_age,
        section.fail_safe,
        policy,
        list_age,
        grace_s=storage.new_broker_grace,
        forget_after_s=storage.forget_after if storage.remembers_brokers else None,
    )
    return VolumeTopicView(
        reader, _make_list_active(settings), view, storage.check_interval, time.monotonic, time.time, prepare
    )
