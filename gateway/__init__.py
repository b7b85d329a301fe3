# The trio shell: processes, sockets, clocks, files. Decisions that need none of them are in protocol/ and policies/.
#
# Programs:
#   __main__.py, cli.py  the command `produce-gateway`: serve, check, schema, version; it finds all others
#   supervisor.py        the parent of a gateway: owns listening sockets, restarts control and workers
#   parent_link.py       the socket between it and each of them: messages, and the child's end
#   health.py            the health port, which the parent answers
#   data/                one worker: the path of a produced byte
#   control/             one per gateway: metadata, policies, storage factor, usage log, metrics, admin server
#   agent/               runs beside a broker and publishes its volumes
#   commands/            commands that ask a running gateway or a cluster
#
# Programs that a gateway runs without, in a distribution of their own (extras/pyproject.toml):
#   audit/               the PySpark audit
#   demo/                the demo
#   embedded/            a real Kafka for the demo and the tests
#   strimzi/             import of the settings of Strimzi's quotas plugin
#
# What they share:
#   channel.py           the messages between control and workers
#   config/              YAML -> validated settings
#   worker_config.py     the part of the configuration that workers get; made of config/, without pydantic
#   policy_document.py   policies as a document: reading, comparing, writing
#   kafka/               how brokers are reached and asked; the internal topics
#   storage/             sources of volumes
#   quotas/              a Python client for client quotas
#   log/                 loggers, how lines look, and how many there may be of one kind
#   tls/                 TLS as it is configured: certificates, principals, brokers
#   access_tokens/       tokens for the admin server, and roles
#   http/                an HTTP client; what commands and the console say to the admin server's API
#   cli_support/         what all command lines share
#   system/              cores, files, hosts, shared memory, sockets
#   plugins.py           sources, limits and policies of the operator's own
#   secret_key.py        a secret of the gateway's own, and keys made of it
#   listener_names.py, name_hints.py, validation_text.py, yaml_text.py   one small thing each
#   compiled.py          whether the hot path's compiled modules run, or the Python that they are made from
#
# Who imports whom: data and control share channel.py and the small things, and nothing else here; nothing imports
# cli.py or the programs of the extras. pyproject.toml has the contracts (import-linter).

from __future__ import annotations

from gateway.compiled import apply_pure_python

apply_pure_python()
