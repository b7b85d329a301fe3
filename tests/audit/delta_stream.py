# What test_stream_kafka.py asks of Delta tables, in one process: `python -m tests.audit.delta_stream ADDRESS TOPIC
# FOLDER` prints, a JSON object a line, what the tables say after each thing that is done to them.

from __future__ import annotations

import json
import shutil
import sys

from gateway.audit import job, store, stream, upkeep
from gateway.audit.job import Question
from gateway.audit.stream import Plan
from tests.audit.records import START

SMALL = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "2",
}
DAY_MS = 86_400_000


def main(address: str, topic: str, folder: str) -> None:
    with job.session(SMALL, delta=True) as spark:
        tables = store.open_tables(spark, f"{folder}/t", make="delta")
        assert isinstance(tables, store.DeltaTables)

        def tell() -> None:
            report = job.run_tables(tables, Question())
            trust = report.integrity
            print(
                json.dumps(
                    {
                        "bytes": report.rows[0]["offered_bytes"],
                        "records": trust.records,
                        "duplicates": trust.duplicates,
                        "malformed": trust.malformed,
                        "gaps": trust.gaps_total,
                    }
                )
            )

        stream.run(spark, tables, Plan(address, topic, {}, f"{folder}/one"))
        tell()
        stream.run(spark, tables, Plan(address, topic, {}, f"{folder}/two", max_records=3))
        tell()
        # Killed after the first tables of a batch: the last one has nothing of it, nor has the checkpoint.
        shutil.rmtree(f"{folder}/t/intervals")
        stream.run(spark, tables, Plan(address, topic, {}, f"{folder}/three"))
        tell()
        upkeep.compact(tables)
        tell()
        store_now = START + 10 * DAY_MS
        store.now_ms = lambda: store_now  # the records are of 2025
        upkeep.expire(tables, 8 * DAY_MS)
        stream.run(spark, tables, Plan(address, topic, {}, f"{folder}/four"))
        tell()


if __name__ == "__main__":
    main(*sys.argv[1:])
