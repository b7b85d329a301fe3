# Storage protection: where volumes are looked up, and what the sources say together. gateway/control/storage/ acts on
# it by the rules of policies/storage/.
#
#   views.py       what holds while a source is late or silent; volumes from snapshots
#   observed.py    volumes from a source that is asked
#   log_dirs.py    volumes as the brokers describe them
#   prometheus.py  volumes from Prometheus
#   snapshot.py    one snapshot of a broker's volumes, as volume agents publish it
#   snapshots.py   the topic of these
