# recommend.measure_rates over Spark, which keeps the sums of single windows where they are.

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit.spark import schema
from gateway.audit.whatif.recommend import RecommendOptions, TopicRate
from policies import usage
from policies.engine import INTERNAL_TOPICS


def measure_rates(rows: DataFrame, wish: RecommendOptions) -> list[TopicRate]:
    """The same of rows of usage."""
    window = F.col("start_ms") - F.col("start_ms") % wish.window_ms
    known = F.col("bytes") - F.coalesce("repeats", F.lit(0))
    unknown = F.col("repeats").isNull() & (F.col("outcome") == "rejected") & (F.col("bytes") > 0)
    per_window = (
        rows.where(~F.col("outcome").isin(*usage.NOTES) & ~F.col("topic").isin(*sorted(INTERNAL_TOPICS)))
        .groupBy("broker", "topic", window.alias(schema.WINDOW_COLUMN))
        .agg(F.sum(known).alias("bytes"), F.max(unknown).alias("unknown"))
    )
    found = per_window.where("bytes > 0").groupBy("broker", "topic")
    usual = F.percentile("bytes", wish.percentile / 100)
    sums = found.agg(usual, F.max("bytes"), F.count(F.lit(1)), F.max("unknown"))
    return [*map(TopicRate._make, sums.collect())]
