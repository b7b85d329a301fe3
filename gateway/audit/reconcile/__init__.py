# The sums against the growth of the brokers' logs.
#
#   command.py     options; where the two sides come from
#   brokers.py     what brokers are asked: how large logs are, and where they end
#   local_sums.py  the sums without Spark
#   spark_sums.py  the sums by Spark
#   reconcile.py   the verdict: pure, of snapshots and sums
