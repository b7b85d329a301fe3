# Where tables and checkpoints lie: how Spark and deltalake, which reads and writes the same without it, call the place
# and get in. Both know s3a://, gs://, abfss:// and hdfs://, beside paths of this machine.

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileType, PyFileSystem
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gateway.audit.errors import AuditError, explain_storage_error

_LOCAL: Final = "file:"
_CHUNK_BYTES: Final = 2**22
# What a session was given for Spark's file systems, by the name that deltalake has for it. The rest (Azure's, Google's,
# roles of machines) both take from where they run.
_S3_OPTIONS: Final = {
    "spark.hadoop.fs.s3a.access.key": "AWS_ACCESS_KEY_ID",
    "spark.hadoop.fs.s3a.secret.key": "AWS_SECRET_ACCESS_KEY",
    "spark.hadoop.fs.s3a.session.token": "AWS_SESSION_TOKEN",
    "spark.hadoop.fs.s3a.endpoint": "AWS_ENDPOINT_URL",
    "spark.hadoop.fs.s3a.endpoint.region": "AWS_REGION",
    # Locks of Spark's writers, which ours have to hold, too.
    "spark.io.delta.storage.S3DynamoDBLogStore.ddb.tableName": "DELTA_DYNAMO_TABLE_NAME",
}
_PATH_STYLE: Final = "spark.hadoop.fs.s3a.path.style.access"
_LOG_STORES: Final = ("spark.delta.logStore.s3a.impl", "spark.delta.logStore.s3.impl")


def qualify_path(spark: SparkSession, root: str) -> str:
    """The same place as a URI of Spark's, without a slash at its end; a path is one of the session's file system."""
    root = root.rstrip("/") or "/"
    if "://" in root or root.startswith(_LOCAL):
        return f"{_LOCAL}/{root.removeprefix(_LOCAL).lstrip('/')}" if root.startswith(_LOCAL) else root
    # The one place that each session has, and tells by its whole name.
    default = urlsplit(spark.conf.get("spark.sql.warehouse.dir") or "")
    if default.scheme in {"", "file"}:
        return f"{_LOCAL}{Path(root).absolute()}"
    if not root.startswith("/"):
        raise AuditError(f"{root}: a path in {default.scheme}://{default.netloc} begins with /")
    return f"{default.scheme}://{default.netloc}{root}"


def local_path(root: str) -> str | None:
    """The path of a place on this machine's file systems."""
    return root.removeprefix(_LOCAL) if root.startswith(_LOCAL) else None


def find_storage_options(spark: SparkSession) -> dict[str, str]:
    """deltalake's options for the file systems that the session has settings for."""
    found = {ours: value for theirs, ours in _S3_OPTIONS.items() if (value := _find_setting(spark, theirs))}
    endpoint = found.get("AWS_ENDPOINT_URL")
    if endpoint and "://" not in endpoint:
        found["AWS_ENDPOINT_URL"] = endpoint = f"https://{endpoint}"
    if endpoint and endpoint.startswith("http:"):
        found["AWS_ALLOW_HTTP"] = "true"
    if _find_setting(spark, _PATH_STYLE) == "false":
        found["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
    if any("DynamoDB" in (_find_setting(spark, name) or "") for name in _LOG_STORES):
        found["AWS_S3_LOCKING_PROVIDER"] = "dynamodb"
    return found


def _find_setting(spark: SparkSession, name: str) -> str | None:
    try:
        return spark.conf.get(name, None)
    except PySparkException:  # Spark Connect has no word for "not set"
        return None


class StorageDirectory:
    """Files in a directory.

    Raises:
        AuditError, from each method as well: it can't be reached, read or written.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        """`root`: as qualify_path has it."""
        self.root = root
        path = local_path(root)
        with self._translated_errors():
            if path is not None:
                Path(path).mkdir(parents=True, exist_ok=True)
            self._files = PyFileSystem(DeltaStorageHandler(path or root, dict(options)))

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise AuditError(explain_storage_error(self.root, error)) from error

    def read_file(self, name: str) -> bytes | None:
        """The contents of a file; None: there is no such file."""
        with self._translated_errors():
            try:
                with self._files.open_input_stream(name) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def write_file(self, name: str, contents: bytes) -> None:
        """A file that is there whole or not at all, in the place of any other of that name."""
        # deltalake takes bytes alone, as which Arrow hands on what went through a buffer of its own.
        with self._translated_errors(), self._files.open_output_stream(name, buffer_size=2 * _CHUNK_BYTES) as stream:
            shutil.copyfileobj(io.BytesIO(contents), stream, _CHUNK_BYTES)

    def count_existing(self, names: Sequence[str]) -> int:
        """How many of these files there are."""
        with self._translated_errors():
            return sum(each.type == FileType.File for each in self._files.get_file_info([*names]))
