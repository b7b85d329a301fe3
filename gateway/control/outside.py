# What control reaches outside its process, and how each is made from the configuration: clients of Kafka, files,
# clocks. A control that is played without them gets another one of these. Sockets are the parent's (supervisor.py).

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway.config import Settings, Storage
from gateway.control.cluster.broker_quotas import BrokerQuotas
from gateway.control.cluster.metadata import AdminSource, MetadataSource
from gateway.control.components.optional_components import (
    SOURCE,
    SPOOL,
    STORAGE,
    ComponentUnusable,
    OptionalComponents,
)
from gateway.control.fleet.exchange.exchange import FleetParty, UsageExchange
from gateway.control.policies.store import FileStore, PolicyStore, RetriedStore
from gateway.control.policies.topic_store import TopicStore
from gateway.control.storage.sources import StorageError, make_storage_view
from gateway.control.usage.usage_spool import SpoolInUse, UsageSpool
from gateway.plugins import QUOTA_SOURCES, load_plugin
from gateway.secret_key import obtain_secret
from gateway.storage.views import StorageView


class Outside:
    """The real ones."""

    def unix_time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def obtain_secret(self, settings: Settings) -> bytes:
        return obtain_secret(settings)

    def make_components(self, settings: Settings) -> OptionalComponents:
        """The spool, what looks at disks, and the operator's source of thresholds."""
        storage, thresholds = settings.storage, settings.thresholds
        makers: dict[str, Callable[[], Any]] = {SPOOL: functools.partial(_open_spool, settings)}
        if storage is not None and not storage.is_disabled:
            makers[STORAGE] = functools.partial(_make_storage_view, settings, storage)
        if thresholds.source:
            makers[SOURCE] = functools.partial(load_plugin, QUOTA_SOURCES, thresholds.source, thresholds.options)
        return OptionalComponents(makers)

    def make_policy_store(self, settings: Settings, *, patient: bool) -> PolicyStore:
        """The store of policies changed at run time. `patient`: a file that can't be used is tried again.

        Raises:
            StoreError: the file can't be used, without `patient`.
        """
        kept, base = settings.policies_store, settings.policy_values()
        if settings.internal_topics == "none":
            path = settings.policies_file
            return RetriedStore(lambda: FileStore(path, base), base) if patient else FileStore(path, base)
        client = settings.client_properties
        return TopicStore(client, kept.topic, base, replication=kept.replication, member=settings.gateway_name)

    def make_cluster_source(self, settings: Settings, watched: Callable[[], Sequence[str]]) -> MetadataSource:
        """`watched`: see AdminSource."""
        storage = settings.storage
        return AdminSource(
            settings.client_properties,
            settings.gateway_topics,
            topic_ids=settings.internal_topics == "kafka",
            replicas=storage is not None and storage.scope == "affected",
            spread=storage is not None and not storage.is_disabled,
            watched=watched,
        )

    def make_broker_quotas(self, settings: Settings) -> BrokerQuotas:
        return BrokerQuotas.of_cluster(settings.upstream.bootstrap_servers, settings.upstream.properties)

    def make_exchange(self, settings: Settings, party: FleetParty) -> UsageExchange:
        return UsageExchange(
            settings.client_properties,
            settings.usage_topic,
            settings.gateway_name,
            party,
            cycle_s=settings.usage_interval,
            every=settings.resource_usage_report_every,
        )


def _open_spool(settings: Settings) -> UsageSpool:
    kept, published_only = settings.usage_log, settings.internal_topics == "kafka"
    try:
        return UsageSpool(kept.spool_dir, kept.max_spool_bytes, kept.retention, published_only=published_only)
    except SpoolInUse as error:
        raise ComponentUnusable(str(error)) from error
    except OSError as error:
        raise ComponentUnusable(f"{SPOOL} {kept.spool_dir}: {error.strerror or error}") from error


def _make_storage_view(settings: Settings, storage: Storage) -> StorageView:
    try:
        return make_storage_view(settings, storage)
    except StorageError as error:
        raise ComponentUnusable(str(error)) from error
