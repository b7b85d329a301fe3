# What happened to clients' bytes.
#
#   usage_log.py       intervals -> spool on disk -> usage topic
#   recent.py          what policies did lately, for the API
#   timeline.py        the traffic of the last hour, for the API
#   traffic_lines.py   the log's lines about traffic, a bounded number a minute
