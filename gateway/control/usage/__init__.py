# What happened to clients' bytes.
#
#   usage_log.py        intervals -> spool on disk -> usage topic: from a worker to the spool
#   usage_spool.py      the spool's files
#   usage_publisher.py  from the spool to the usage topic
#   recent.py           what policies did lately, for the API
#   timeline.py         the traffic of the last hour, for the API
#   traffic_lines.py    the log's lines about traffic, a bounded number a minute
