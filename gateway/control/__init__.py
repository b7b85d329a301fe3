# The control process, one per gateway: everything that may take its time, so that the data path never waits for it.
#
#   __main__.py   started by the parent: python -m gateway.control --fd N
#   app.py        composition root: build, nest nurseries, accept and hand over, drain
#   workers.py    the channels to the workers: snapshots down, intervals and rates up
#   cluster.py    brokers, topic leaders, topic ids; a listener per broker
#   usage_log.py  intervals -> spool on disk -> usage topic
#   metrics.py    every metric in one table
#   admin.py      /metrics, /healthz, /readyz
