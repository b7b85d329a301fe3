# The trio shell: processes, sockets, clocks, files. What may be decided without them is in protocol/ and policies/.
#
# Programs:
#   __main__.py, cli.py  the command `produce-gateway`: serve, check, schema, version; it finds all others
#   supervisor.py        the parent of a gateway: owns listening sockets, restarts control and workers
#   data/                one worker: the path of a produced byte
#   control/             one per gateway: metadata, policies, storage factor, usage log, metrics, admin server
#   volume_agent.py      runs beside a broker and publishes its volumes
#   commands/            commands that ask a running gateway or a cluster
#   audit/               the PySpark audit
#   demo/                the demo
#   embedded.py          a real Kafka for the demo and the tests
#
# What they share:
#   channel.py           the messages between control and workers
#   config/              YAML -> validated settings
#   policy_document.py   policies as a document: reading, comparing, writing
#   kafka/               how brokers are reached and asked; the internal topics
#   fleet/               the messages between gateways
#   storage/             sources of volumes
#   quotas/              a Python client for client quotas
#   plugins.py           policies of the operator's own
#   certificates.py, tokens.py, hosts.py, sockets.py, cores.py, files.py, http_client.py, suggest.py, yaml_text.py
#                        one small thing each
#
# Who imports whom: data and control share channel.py and the small things, and nothing else here; nothing imports
# cli.py, demo/ or audit/. pyproject.toml has the contracts (import-linter).
