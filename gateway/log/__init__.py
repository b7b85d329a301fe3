# The log.
#
#   logs.py        loggers, fields, and how lines look
#   log_bound.py   how many lines of one kind there may be
