# The audit as a stream into tables, and their upkeep.
#
#   command.py  stream, compact, expire
#   stream.py   from the topic into them
#   upkeep.py   compact and expire
