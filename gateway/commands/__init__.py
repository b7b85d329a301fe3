# Commands for people, each with its options, output and exit codes.
#
#   admin_client.py      the client of a running gateway's REST API, and how a command prints its response
#   output.py            tables, JSON and YAML
#   response_display.py  a response shown once, or live
#   views/               commands that show one response: status, clients, explain, topics, top, reload, …
#   groups.py            resource groups: list, get, set, delete, attach, detach
#   policies.py          policies: show, export, diff, apply
#   health.py            whether a gateway lives, for health checks
#   storage.py           the cluster's disks and the storage factor
#   storage_override.py  an operator's override of what it says: pause, open, resume
#   kafka_quotas.py      KIP-546's command, on a gateway or a plain cluster
#   quota_files.py       client quotas as data, printed and imported by it
#   credentials/         tokens of the admin port, and users' records of the credentials file
