# The sources of a local audit, and whether they belong to it.
#
# Tables take two large libraries that nothing else here needs, so they are imported where there are tables.

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.audit.addresses import check_reachable
from gateway.audit.cluster_access import UntranslatableProperty
from gateway.audit.engines import LOCAL_BYTES, LOCAL_RECORDS, LOCAL_TABLE_BYTES, REPLAY_EFFORT
from gateway.audit.errors import AuditError
from gateway.audit.local.records import LocalRecords, LocalSource
from gateway.audit.local.spool import SpoolSource, is_plain_path
from gateway.audit.local.topic import TopicSource

if TYPE_CHECKING:
    from gateway.audit.local.tables import LocalTables


def open_sources(
    bootstrap_servers: str | None,
    topic: str,
    properties: Mapping[str, str],
    spool: Sequence[str],
    *,
    always: bool,
    keys: Sequence[bytes] = (),
    from_ms: int | None = None,
    replays: bool = False,
) -> LocalRecords | None:
    """The records of a topic (unless `bootstrap_servers` is None) and of spool files. None: they are Spark's, being too
    large or readable by Java only; never with `always`. `keys`: of the records' digests; `from_ms`: from when on a
    topic has to be read (Unix ms; TopicSource); `replays`: whether they are to be replayed, not only added up.

    Raises:
        AuditError: a source isn't there, or can't be read.
    """
    if not always and not all(map(is_plain_path, spool)):
        return None
    files, effort = [SpoolSource(path) for path in spool], REPLAY_EFFORT if replays else 1
    packed = [name for each in files for name in each.packed]
    if packed and (always or importlib.util.find_spec("pyspark") is None):
        raise AuditError(f"{packed[0]} is packed: --engine spark unpacks it (pip install 'produce-gateway[audit]')")
    if packed:
        return None
    if not always and effort * sum(each.sizes[0] for each in files) > LOCAL_BYTES:
        return None
    sources: list[LocalSource] = [*files]
    if bootstrap_servers is not None:
        check_reachable(bootstrap_servers)
        try:
            usage_topic = TopicSource(bootstrap_servers, topic, properties, from_ms)
        except UntranslatableProperty:
            if always:
                raise
            return None
        if not always and effort * usage_topic.sizes[0] > LOCAL_RECORDS:
            return None
        sources.insert(0, usage_topic)
    return LocalRecords(sources, keys)


def open_tables(root: str, *, always: bool, replays: bool = False) -> LocalTables | None:
    """The tables of `audit stream` in a directory. None: they are Spark's, being elsewhere than on this machine's file
    systems, or far ahead of their roll-ups (or, for a replay, large), or as the libraries are not installed; never with
    `always`.

    Raises:
        AuditError: there are none, they can't be read, or they are of a newer layout.
    """
    if any(importlib.util.find_spec(name) is None for name in ("deltalake", "duckdb")):
        if always:
            raise AuditError(
                "tables without Spark need deltalake and duckdb: pip install 'produce-gateway[audit-tables]'"
            )
        return None
    from gateway.audit.local import tables

    if not always and not tables.is_local_path(root):
        return None
    try:
        found = tables.LocalTables(root)
    except tables.UnreadableFeature:
        if always:
            raise
        return None
    size = found.record_bytes if replays else found.later_bytes
    return found if always or size <= LOCAL_TABLE_BYTES else None
