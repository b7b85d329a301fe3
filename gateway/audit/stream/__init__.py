# The audit as a stream into tables, and their upkeep.
#
#   command.py   stream, compact, expire
#   stream.py    from the topic into them
#   metrics.py   what it tells Prometheus, and whether it gets on
#   listener.py  what Spark tells of each batch
#   upkeep.py    compact and expire
