# The audit as a stream into tables, and their upkeep.
#
#   command.py  stream, compact, expire
#   store.py    the Delta Lake tables: reading, adding a batch, who may add
#   stream.py   from the topic into them
#   upkeep.py   compact and expire
