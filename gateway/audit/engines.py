# The two engines of the audit, and where each belongs: Spark for clusters, large inputs, `stream` and the upkeep of its
# tables, the local one (local/) for what one machine reads in minutes without Java.

from __future__ import annotations

import os
from typing import Final

AUTO: Final = "auto"
LOCAL: Final = "local"
SPARK: Final = "spark"
ENGINES: Final = (AUTO, LOCAL, SPARK)

# What AUTO leaves to the local engine: a minute or so of one core, and 150 MB for the numbers of records.
LOCAL_BYTES: Final = 4_000_000_000  # of spool files
LOCAL_RECORDS: Final = 6_000_000  # of a topic
# Of files of records that are looked at one by one: those that no roll-up has, for their numbers, or all, for a replay.
LOCAL_TABLE_BYTES: Final = 200_000_000
REPLAY_EFFORT: Final = 8  # how many times as long as to add a record up it takes to replay it
# The files of a spool directory that are read; with the others behind it, by Spark, which unpacks them.
SPOOL_ENDING: Final = ".jsonl"
PACKED_ENDINGS: Final = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst")


def find_remote() -> str | None:
    """The address of a Spark Connect server that this process is to use, as PySpark itself takes it."""
    return os.environ.get("SPARK_REMOTE")


def has_given_session() -> bool:
    """Whether Spark runs already, with the master and jars given there: a spark-submit started this process, or it is
    to use a Spark Connect server.
    """
    return "PYSPARK_GATEWAY_PORT" in os.environ or find_remote() is not None
