# An archive of Spark's classes as its JVM has them once they are loaded (JEP 350): with it a session is there in 3 s
# instead of 5.5. `python -m gateway.audit.class_data` has a small audit make it, once, in the folder of this
# PySpark (170 MB); `make test` does so for its tests. Without it Spark starts as ever.

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.audit.batch import job, spark_sources
from gateway.audit.batch.query import AuditQuery, answer_query
from gateway.audit.errors import AuditError
from gateway.audit.spark import schema, spark_session
from gateway.audit.spark.connector import MissingDependency, find_java
from gateway.audit.whatif import reading, whatif
from gateway.embedded.jars import class_data_path
from policies import usage
from policies.whatif.rows import ReplayRules

_DUMP_TIMEOUT_S: Final = 180.0
_START_MS: Final = 1_763_600_040_000


def make_archive() -> Path:
    """The archive for this Java and this PySpark, made if it isn't there.

    Raises:
        AuditError, MissingDependency: it can't be made here.
    """
    find_java()
    wanted = class_data_path(spark_session.SPARK_JARS)
    if wanted.exists():
        return wanted
    if not os.access(wanted.parent, os.W_OK):
        raise AuditError(f"{wanted.parent} can't be written: run this as the owner of PySpark's files")
    fresh = wanted.with_suffix(f".{os.getpid()}")
    try:
        _dump_classes(fresh)
        if not fresh.exists():
            raise AuditError(
                "this Java makes no archive of classes: install a JDK or JRE 17 or 21 that has one of its own"
            )
        fresh.rename(wanted)
        return wanted
    finally:
        fresh.unlink(missing_ok=True)


def _dump_classes(archive: Path) -> None:
    """Have a JVM load what audits of a few records load, and note it down when it ends."""
    ours = spark_session.LOCAL_SETTINGS[spark_session.JAVA_OPTIONS]
    options = {spark_session.JAVA_OPTIONS: f'{ours} "-XX:ArchiveClassesAtExit={archive}"'}
    question = AuditQuery(("topic",), 60_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session.open_session(options, kafka=False, stop_s=_DUMP_TIMEOUT_S) as spark,
    ):
        spool = Path(folder) / "usage-00000000-classes.jsonl"
        spool.write_bytes(b"\n".join(_sample_lines()))
        job.audit_sources(spark, [spark_sources.read_spool(spark, str(spool))], question)
        with job.read_sources([spark_sources.read_spool(spark, str(spool))]) as records:
            answer_query(records, question)
            table = f"{folder}/table"
            records.rows.write.parquet(table)
            spark.read.parquet(table).groupBy(*schema.BOOT_COLUMNS[:1]).count().collect()
        with reading.read_pieces([spark_sources.read_spool(spark, str(spool))]) as recorded:
            whatif.evaluate_policy(recorded, ReplayRules({}), question)


def _sample_lines() -> list[bytes]:
    class Row:
        broker, topic, principal, client_id = 1, "clicks", "User:alice", "app"
        outcome, reason, group, software = "rejected", "topic-threshold", "", ""
        bytes, messages, requests, delay_ms, repeats = 100, 1, 1, 50, None

    return [
        line
        for seq in range(20)
        for line in usage.encode_interval(
            "gw", "boot", 0, seq, [Row()], start_ms=_START_MS + 1000 * seq, end_ms=_START_MS + 1000 * seq + 1000
        )
    ]


def main(arguments: Sequence[str]) -> int:
    """`python -m gateway.audit.class_data`: returns the exit status."""
    try:
        made = make_archive()
    except (AuditError, MissingDependency) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{made}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
