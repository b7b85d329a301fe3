# Where tables and checkpoints lie: how Spark and deltalake, which reads and writes the same without it, call the place
# and get in. Both know s3a://, gs://, abfss:// and hdfs://, beside paths of this machine.

from __future__ import annotations

import io
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow import NativeFile
from pyarrow.fs import FileType, PyFileSystem
from pyspark.errors import AnalysisException, PySparkException
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
}
_PATH_STYLE: Final = "spark.hadoop.fs.s3a.path.style.access"
_SSL: Final = "spark.hadoop.fs.s3a.connection.ssl.enabled"
_LOG_STORE: Final = "spark.delta.logStore.{}.impl"


def qualify_path(spark: SparkSession | None, root: str) -> str:
    """The same place as a URI of Spark's, without a slash at its end; a path is one of the session's file system, or of
    this machine's without one.

    Raises:
        AuditError: Spark and deltalake would take it for different places.
    """
    if "\\" in root:
        raise AuditError(f"{root}: deltalake takes a backslash for a slash")
    root = root.rstrip("/") or "/"
    if root.startswith(_LOCAL):
        return f"{_LOCAL}/{root.removeprefix(_LOCAL).lstrip('/')}"
    if "://" in root:
        return root
    if re.match(r"[A-Za-z][\w+.-]+:/", root):  # Hadoop's short form, which would be a directory of this name
        raise AuditError(f"{root}: a URI has two slashes behind its scheme, as hdfs://namenode:8020/audit")
    scheme, host = _find_default_place(spark) if spark is not None else ("file", "")
    if scheme == "file":
        return f"{_LOCAL}{Path(root).absolute()}"
    if not root.startswith("/"):
        raise AuditError(f"{root}: a path in {scheme}://{host} begins with /")
    return f"{scheme}://{host}{root}"


def _find_default_place(spark: SparkSession) -> tuple[str, str]:
    """Scheme and host of a path that has none, of which Spark tells only where it looks for one in vain."""
    try:
        spark.read.text(f"/{uuid.uuid4()}").schema  # noqa: B018 - Spark Connect looks only now
    except AnalysisException as error:
        place = urlsplit((error.getMessageParameters() or {}).get("path", ""))
        if place.scheme:
            return place.scheme, place.netloc
        raise
    raise AssertionError


def local_path(root: str) -> str | None:
    """The path of a place on this machine's file systems."""
    return root.removeprefix(_LOCAL) if root.startswith(_LOCAL) else None


def find_storage_options(spark: SparkSession | None) -> dict[str, str]:
    """deltalake's options for the file systems that the session has settings for."""
    if spark is None:
        return {}
    found = {ours: value for theirs, ours in _S3_OPTIONS.items() if (value := _find_setting(spark, theirs))}
    endpoint = found.get("AWS_ENDPOINT_URL")
    if endpoint and "://" not in endpoint:
        scheme = "http" if _find_setting(spark, _SSL) == "false" else "https"
        found["AWS_ENDPOINT_URL"] = endpoint = f"{scheme}://{endpoint}"
    if endpoint and endpoint.startswith("http:"):
        found["AWS_ALLOW_HTTP"] = "true"
    if _find_setting(spark, _PATH_STYLE) == "false":
        found["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
    return found


def has_locking_log_store(spark: SparkSession, root: str) -> bool:
    """Whether Spark's commits in a place hold each other off by something that deltalake's know nothing of.

    S3 itself refuses to create a file twice, of which deltalake makes use; Delta Lake's classes for S3 don't.
    """
    return "DynamoDB" in (_find_setting(spark, _LOG_STORE.format(urlsplit(root).scheme)) or "")


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
        with self.open_file(name) as stream:
            shutil.copyfileobj(io.BytesIO(contents), stream, _CHUNK_BYTES)

    @contextmanager
    def open_file(self, name: str) -> Iterator[NativeFile]:
        """A new file, to be written; it is whole once this is left without an error."""
        # deltalake takes bytes alone, as which Arrow hands on what went through a buffer of its own.
        with self._translated_errors(), self._files.open_output_stream(name, buffer_size=2 * _CHUNK_BYTES) as stream:
            yield stream

    def find_existing(self, names: Sequence[str]) -> list[str]:
        """Those of these files that there are."""
        with self._translated_errors():
            found = self._files.get_file_info([*names])
        return [name for name, file in zip(names, found, strict=True) if file.type == FileType.File]

    def delete_files(self, names: Iterable[str]) -> None:
        """Delete these files."""
        with self._translated_errors():
            for name in names:
                self._files.delete_file(name)
