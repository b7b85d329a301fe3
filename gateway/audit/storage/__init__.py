# What fills the cluster's volumes, from the usage log.
#
#   command.py    options
#   filling.py    the sums, over Spark: volumes over time, bytes that came to each, by topic and principal
#   retention.py  which retention would have kept a volume below its limit: pure
#   text.py       how the answer is shown: pure
