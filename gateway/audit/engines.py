# The two engines of the audit, and where each belongs: Spark for tables, clusters and large inputs, the local one
# (local/) for what one machine reads in minutes without Java.

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


def under_spark_submit() -> bool:
    """Whether a spark-submit started this process: its JVM runs already, with the master and jars given there."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
