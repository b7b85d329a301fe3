# One of the audit's tables in one version, by deltalake: what Delta Lake's log has of it, and commits on top of it.
#
# Needs neither Java nor Spark. Spark has no API for two things that the stream rests on: reading transaction
# identifiers, and a commit of files that are there already. Knows nothing of columns.

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

if TYPE_CHECKING:
    import pyarrow as pa


class CommitConflict(Exception):
    """Another writer has changed the same rows meanwhile, and this commit was not made."""


class UnwritableTable(Exception):
    """The table has features of Delta Lake's that deltalake doesn't write, and this commit was not made."""


class TableVersion:
    """A table's newest version, or the given one.

    Raises:
        TableNotFoundError: there is none.
        DeltaError: it can't be read.
    """

    def __init__(self, address: str, options: Mapping[str, str] | None = None, version: int | None = None) -> None:
        """`address`: a path, or a URI; `options`: deltalake's `storage_options`."""
        self._address, self._options = address, dict(options or {})
        self._table = DeltaTable(address, version, self._options)
        self.version = self._table.version()
        metadata = self._table.metadata()
        self.id = str(metadata.id)  # not shared by a table that is made anew in the same place
        self.properties: Mapping[str, str] = metadata.configuration

    @property
    def column_names(self) -> set[str]:
        """Of all columns."""
        return {field.name for field in self._table.schema().fields}

    @property
    def reader_features(self) -> str:
        """Without which the rows of its files are not those of the table; "" for none."""
        protocol = self._table.protocol()
        if protocol.min_reader_version <= 1:
            return ""
        return ", ".join(protocol.reader_features or ()) or f"reader version {protocol.min_reader_version}"

    def committed_version(self, identifier: str) -> int:
        """The last version that was committed under a transaction identifier, 0 for none."""
        return self._table.transaction_version(identifier) or 0

    def describe_files(self) -> list[dict[str, Any]]:
        """Its files: `path`, relative to the table, `size_bytes`, bounds of columns as `min.NAME` and `max.NAME`."""
        return [*self._table.get_add_actions(flatten=True).to_struct_array().to_pylist()]

    def find_added(self, since: int) -> list[dict[str, Any]] | None:
        """Those that were not there in version `since`; None: the log has let go of that version."""
        if since < 0:
            return None
        try:
            before = {file["path"] for file in TableVersion(self._address, self._options, since).describe_files()}
        except DeltaError:
            return None
        return [file for file in self.describe_files() if file["path"] not in before]

    def commit(
        self, files: Sequence[AddAction], identifier: str, version: int, *, is_replacement: bool = False
    ) -> None:
        """Add files that are there already (with `is_replacement` in the place of all others) and note the version.
        Nothing is done where the version is not a later one.

        Raises:
            CommitConflict: another writer was quicker.
            UnwritableTable: nobody was, but deltalake refuses.
            DeltaError: it can't be done.
        """
        if self.committed_version(identifier) >= version:
            return
        noted = Transaction(identifier, version, now_ms())
        try:
            self._table.create_write_transaction(
                [*files],
                "overwrite" if is_replacement else "append",
                self._table.schema(),
                self._table.metadata().partition_columns,
                commit_properties=CommitProperties(app_transactions=[noted]),
            )
        except CommitFailedError as error:
            # The same class of deltalake's for both.
            refused = TableVersion(self._address, self._options).version == self.version
            raise (UnwritableTable if refused else CommitConflict)(" ".join(str(error).split())) from error

    def find_leftovers(self, hours: int) -> list[str]:
        """The files that went from the table, or never came into it, longer ago than that; among them files that were
        deleted since and still are in the log.
        """
        return self._table.vacuum(hours, enforce_retention_duration=False, full=True)


def open_version(address: str, options: Mapping[str, str] | None = None) -> TableVersion | None:
    """A table's newest version; None: there is no such table."""
    try:
        return TableVersion(address, options)
    except TableNotFoundError:
        return None


def replace_rows(address: str, options: Mapping[str, str], schema: pa.Schema, path: str, size: int, rows: int) -> None:
    """Commit a file, which is there already, as all rows of a table; one is made where there is none. `path`: relative
    to the table; `size`: bytes.

    Raises:
        DeltaError: it can't be done.
    """
    file = AddAction(path, size, {}, now_ms(), True, json.dumps({"numRecords": rows}))
    columns = Schema.from_arrow(schema)
    try:
        table = DeltaTable(address, storage_options=dict(options))
    except TableNotFoundError:
        create_table_with_add_actions(address, columns, [file], "error", [], storage_options=dict(options))
    else:
        table.create_write_transaction([file], "overwrite", columns, [])


def added_file(path: str, day: str, size: int, stats: str) -> AddAction:
    """A file of the rows of one date. `path`: relative to the table; `size`: bytes; `stats`: JSON, as Delta Lake's."""
    return AddAction(path, size, {"date": day}, now_ms(), True, stats)


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000
