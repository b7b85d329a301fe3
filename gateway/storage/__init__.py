# Storage protection: where volumes are looked up, and what the sources say together. gateway/control/storage/ acts on
# it by the rules of policies/storage/.
#
#   views.py        what control asks at any time: the state of a view
#   source_view.py  the view of a source that is asked at every check
#   topic_view.py   the view of the topic that agents write to
#   guarding.py     sources and policies of others, called so that they do no harm
#   log_dirs.py     volumes as the brokers describe them
#   prometheus.py   volumes from Prometheus
#   snapshot.py     one snapshot of a broker's volumes, as volume agents publish it
#   snapshots.py    the topic of these
