# What fills the cluster's volumes, from the usage log.
#
#   command.py       options
#   filling.py       volumes over time, with bytes that came to each by topic and principal: pure, of counts
#   local_counts.py  the counts without Spark
#   spark_counts.py  the counts by Spark
#   retention.py     which retention would have kept a volume below its limit: pure
#   text.py          how the answer is shown: pure
