# The control process, one per gateway: everything that may take its time, so that the data path never waits for it.
#
#   __main__.py   started by the parent: python -m gateway.control --fd N
#   app.py        composition root: build, nest nurseries, accept and hand over, drain
#   workers.py    the channels to the workers: snapshots down, intervals and rates up
#   cluster.py    brokers, topic leaders, topic ids; a listener per broker
#   usage_log.py  intervals -> spool on disk -> usage topic
#   parts.py      what may be unusable, and is done without once the gateway was up
#   traffic_lines.py  what the log says of traffic, so many lines a minute
#   metrics.py    every metric in one table
#   admin.py      /metrics, /healthz, /readyz
