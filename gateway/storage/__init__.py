# Storage protection: where volumes are looked up, and what the sources say together. What control does with it is
# control/storage.py's, the rules are policies/storage.py's.
#
#   plugins.py     sources and limits by entry point
#   views.py      what holds while a source is late or silent
#   log_dirs.py    volumes as the brokers describe them
#   prometheus.py  volumes from Prometheus
#   snapshot.py    one snapshot of a broker's volumes, as volume agents publish it
#   snapshots.py   the topic of these
