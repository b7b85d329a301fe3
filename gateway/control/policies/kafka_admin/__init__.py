# Changes of policies by Kafka's own admin APIs: workers' questions, answered step by step.
#
#   admin_service.py    the steps, and how many requests are worked on at once
#   admin_requests.py   what each kind of request can be asked
#   admin_configs.py    thresholds as configs of topics and brokers
#   admin_topics.py     topics that are created with a threshold
#   admin_deletions.py  topics that are deleted, and their thresholds with them
#   admin_quotas.py     client quotas
