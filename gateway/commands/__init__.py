# Commands for people, each with its options, output and exit codes.
#
#   asking.py          the admin server of a running gateway, asked over HTTP
#   explain.py         every rule that looks at some traffic
#   groups.py          resource groups: list, get, set, delete, attach, detach
#   policies.py        policies: show, export, diff, apply
#   storage.py         the cluster's disks and the storage factor
#   top.py, topics.py  who produces most; every topic with its threshold
#   kafka_quotas.py    KIP-546's command, on a gateway or a plain cluster
#   import_strimzi.py  the settings of Strimzi's quotas plugin -> this configuration
