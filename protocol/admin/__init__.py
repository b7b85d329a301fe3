# Messages of admin APIs, by tables of their fields: how a request is split between the broker and the gateway, and the
# answers merged.
#
# configs.py, quotas.py, topics.py   those that the gateway manages a part of
# topic_deletion.py                  DeleteTopics, which is only read
# cluster.py                         DescribeCluster, Metadata, DescribeLogDirs, which the gateway itself asks
# refusal.py                         the answer that refuses a whole admin request
