# Commands for people, each with its options, output and exit codes.
#
#   admin_client.py      the admin server of a running gateway, asked over HTTP
#   explain.py           every rule that looks at some traffic
#   groups.py            resource groups: list, get, set, delete, attach, detach
#   health.py            whether a gateway lives, for health checks
#   policies.py          policies: show, export, diff, apply
#   reload.py            has a gateway read its configuration again
#   storage.py           the cluster's disks and the storage factor
#   storage_override.py  an operator's override of what it says: pause, open, resume
#   output.py            tables, JSON and YAML
#   response_display.py  an answer shown once, or live
#   views.py             status, clients, connections, peers, history
#   top.py, topics.py    who produces most; every topic with its threshold
#   kafka_quotas.py      KIP-546's command, on a gateway or a plain cluster
#   quota_files.py       client quotas as data, printed and imported by it
#   token.py             a token of the admin port, and its line for admin.token_file
#   scram_record.py      a user's line for the credentials file
