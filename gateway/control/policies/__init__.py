# Policies at run time: where they are kept, who changes them, and by which ways.
#
#   service.py       one change after the other: checked, written, sent to workers
#   store.py         what keeps them: the interface, and a file
#   topic_store.py   the compacted topic
#   topic_log.py     what was read of it
#   transactions.py  how it is written
#   kafka_admin/     changes by Kafka's own admin APIs
#   topic_ids.py     which topic of a name is the present one
#   policy_base.py   what holds where nothing was changed
#   quota_source.py  thresholds from a source of the operator's own
