# Policies at run time: where they are kept, who changes them, and by which ways.
#
#   service.py         one change after the other: checked, written, sent to workers
#   store.py           what keeps them: the interface, and a file
#   topic_store.py     the compacted topic
#   topic_log.py       what was read of it
#   transactions.py    how it is written
#   kafka_admin.py     changes by Kafka's own admin APIs: workers' questions, answered step by step
#   admin_requests.py  what each kind of admin request can be asked
#   admin_configs.py   thresholds as configs of topics and brokers
#   admin_topics.py    topics that are created with a threshold
#   admin_deletions.py  topics that are deleted, and their thresholds with them
#   topic_ids.py       which topic of a name is the present one
#   admin_quotas.py    client quotas
#   quota_source.py    thresholds from a source of the operator's own
