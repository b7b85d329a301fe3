# Commits of files that are there already, beside Spark's: what a table has in each version, who is told a conflict, and
# that Spark's writer knows of the same transaction identifiers.

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction

from gateway.audit.errors import AuditError
from gateway.audit.tables.storage import (
    StorageDirectory,
    find_storage_options,
    has_locking_log_store,
    qualify_path,
)
from gateway.audit.tables.table_version import (
    CommitConflict,
    TableVersion,
    UnwritableTable,
    added_file,
    open_version,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = "2026-11-30"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty table in a folder of an awkward name."""
    folder = tmp_path / "100 % ö [1]"
    columns = pa.schema([("a", pa.int64()), ("date", pa.date32())])
    checkpoints = {"delta.checkpointInterval": "5"}
    DeltaTable.create(str(folder), Schema.from_arrow(columns), partition_by=["date"], configuration=checkpoints)
    return folder


def _make_file(root: Path, value: int) -> AddAction:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [value]}), sink)
    path, contents = f"date={DAY}/{value}.parquet", sink.getvalue().to_pybytes()
    StorageDirectory(f"file:{root}", {}).write_file(path, contents)
    stats = {"numRecords": 1, "minValues": {"a": value}, "maxValues": {"a": value}, "nullCount": {"a": 0}}
    return added_file(path, DAY, len(contents), json.dumps(stats))


def _commit(root: Path, value: int, **how: bool) -> None:
    TableVersion(str(root)).commit([_make_file(root, value)], "me", value, **how)


def _names(root: Path, since: int = -1) -> list[str]:
    table = TableVersion(str(root))
    added = table.find_added(since)
    return sorted(Path(file["path"]).stem for file in (table.describe_files() if added is None else added))


def test_a_commit_adds_files_and_their_version_once(root: Path) -> None:
    assert open_version(f"{root}/nowhere") is None
    assert TableVersion(str(root)).committed_version("me") == 0
    _commit(root, 5)
    for version in (5, 4):  # a batch that came again, and a stream that began earlier
        TableVersion(str(root)).commit([_make_file(root, 6)], "me", version)
    table = TableVersion(str(root))
    assert (table.committed_version("me"), table.committed_version("other"), table.version) == (5, 0, 1)
    (file,) = table.describe_files()
    assert (file["path"], file["min.a"], file["max.a"]) == (f"date={DAY}/5.parquet", 5, 5)
    assert file["size_bytes"] == (root / file["path"]).stat().st_size
    _commit(root, 7)
    assert (_names(root), _names(root, 1), _names(root, 2)) == (["5", "7"], ["7"], [])
    assert TableVersion(str(root)).find_added(99) is None
    _commit(root, 8, is_replacement=True)
    assert (_names(root), _names(root, 2)) == (["8"], ["8"])


@pytest.mark.parametrize("is_replacement", [False, True])
def test_of_two_that_began_at_the_same_version_one_commits(root: Path, is_replacement: bool) -> None:
    late = TableVersion(str(root))
    _commit(root, 1)
    with pytest.raises(CommitConflict):
        late.commit([_make_file(root, 2)], "me", 2, is_replacement=is_replacement)
    late = TableVersion(str(root))
    _commit(root, 3)
    late.commit([_make_file(root, 4)], "other", 4)  # of another identifier: both are right
    assert _names(root) == ["1", "3", "4"]


def test_what_nobody_needs_is_deleted_once_it_is_old(root: Path) -> None:
    for value in range(1, 4):
        _commit(root, value, is_replacement=True)
    left = _make_file(root, 9).path  # by a writer that was killed, or goes on
    (root / "_checkpoint").mkdir()
    (root / "_checkpoint" / "note").touch()
    directory = StorageDirectory(f"file:{root}", {})
    assert TableVersion(str(root)).find_leftovers(1) == []
    found = TableVersion(str(root)).find_leftovers(0)
    assert sorted(found) == [f"date={DAY}/{name}.parquet" for name in (1, 2, 9)]
    directory.delete_files([left])
    assert directory.find_existing(sorted(found)) == [f"date={DAY}/{name}.parquet" for name in (1, 2)]
    assert _names(root) == ["3"]


def test_a_table_that_deltalake_does_not_write_is_no_conflict(root: Path) -> None:
    (log,) = root.glob("_delta_log/*.json")
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    lines = [line for line in log.read_text().splitlines() if '"protocol"' not in line]
    log.write_text("\n".join([*lines, json.dumps({"protocol": protocol})]) + "\n")
    with pytest.raises(UnwritableTable, match=r"RowTracking"):
        _commit(root, 1)


def test_spark_knows_the_versions_that_were_committed_beside_it(spark: SparkSession, root: Path) -> None:
    for version in range(1, 8):
        _commit(root, version)
    assert list(root.glob("_delta_log/*.checkpoint.parquet"))
    for commit in root.glob("_delta_log/*[0-4].json"):  # what a checkpoint takes the place of
        commit.unlink()
    rows = spark.createDataFrame([(1000,)], "a bigint").selectExpr("a", f"date'{DAY}' AS date")
    for version in (7, 8):
        writer = rows.write.format("delta").mode("append").option("txnAppId", "me").option("txnVersion", version)
        writer.save(f"file:{root}")
    assert TableVersion(str(root)).committed_version("me") == 8
    found = spark.read.format("delta").load(f"file:{root}").select("a").collect()
    assert sorted(row["a"] for row in found) == [*range(1, 8), 1000]


def test_files_of_any_size_are_written_whole(tmp_path: Path) -> None:
    directory = StorageDirectory(f"file:{tmp_path}/new/50 % ö", {})
    for size in (0, 5, 2**22, 2**23 + 7):
        directory.write_file("a/b", bytes(range(256)) * (size // 256 + 1))
        assert directory.read_file("a/b") == bytes(range(256)) * (size // 256 + 1)
    assert directory.read_file("c") is None
    with pytest.raises(AuditError, match=rf"^file:{tmp_path}/new/50 % ö: [^\n]*$"):
        directory.write_file("a/b/c", b"")


def test_places_and_keys_are_those_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    for given, meant in (
        (str(tmp_path), f"file:{tmp_path}"),
        (f"file://{tmp_path}/", f"file:{tmp_path}"),
        (f"file:{tmp_path}", f"file:{tmp_path}"),
        ("tables", f"file:{Path.cwd()}/tables"),
        ("s3a://bucket/audit/", "s3a://bucket/audit"),
    ):
        assert qualify_path(spark, given) == meant
    elsewhere = SimpleNamespace(read=spark.read, conf=SimpleNamespace(get=lambda *_: "s3a://bucket/warehouse"))
    assert qualify_path(cast("SparkSession", elsewhere), str(tmp_path)) == f"file:{tmp_path}"
    with pytest.raises(AuditError, match=r"^/a\\b: deltalake takes a backslash for a slash$"):
        qualify_path(spark, "/a\\b")
    with pytest.raises(AuditError, match=r"^hdfs:/audit: a URI has two slashes behind its scheme"):
        qualify_path(spark, "hdfs:/audit")
    assert find_storage_options(spark) == {}
    assert not has_locking_log_store(spark, "s3a://bucket/audit")
    settings = {
        "fs.s3a.access.key": "who",
        "fs.s3a.secret.key": "secret",
        "fs.s3a.endpoint": "localhost:9000",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.path.style.access": "true",
    }
    store = ("spark.delta.logStore.s3a.impl", "io.delta.storage.S3DynamoDBLogStore")
    given_settings = dict([*((f"spark.hadoop.{name}", value) for name, value in settings.items()), store])
    try:
        for name, value in given_settings.items():
            spark.conf.set(name, value)
        assert find_storage_options(spark) == {
            "AWS_ACCESS_KEY_ID": "who",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL": "http://localhost:9000",
            "AWS_ALLOW_HTTP": "true",
        }
        assert [has_locking_log_store(spark, f"{scheme}://bucket/audit") for scheme in ("s3a", "s3")] == [True, False]
    finally:
        for name in given_settings:
            spark.conf.unset(name)
