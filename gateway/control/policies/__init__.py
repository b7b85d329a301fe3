# Policies at run time: where they are kept, who changes them, and by which ways.
#
#   service.py       one change after the other: checked, written, told to workers
#   store.py         the compacted topic (or a file) that keeps them
#   kafka_admin.py   changes by Kafka's own admin APIs
#   quota_source.py  thresholds from a source of the operator's own
