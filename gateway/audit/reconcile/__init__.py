# The sums against the growth of the brokers' logs.
#
#   command.py    options; where the two sides come from
#   brokers.py    what brokers are asked: offsets, a topic's id, how large logs are
#   reconcile.py  the verdict: pure
