# The volume agent: runs beside a broker, measures the volumes under its log dirs and publishes a snapshot of them to
# the compacted volume topic, when it starts and periodically. 035's data source, as a process of its own.
#
#   command.py     the process: `produce-gateway volume-agent`
#   arguments.py   its flags, and the file that they may name
#   settings.py    what they say, checked
#   measuring.py   the volumes under the log dirs
#   publishing.py  the snapshots, and what is logged of them
#   metrics.py     /metrics
#
# Knows no policy: limits are passed on, what they mean is decided where snapshots are read.
