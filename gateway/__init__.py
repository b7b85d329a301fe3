# The trio shell: processes, sockets, clocks, files. What may be decided without them is in protocol/ and policies/.
#
#   __main__.py, cli.py  the command `produce-gateway`: serve, check, demo, audit, schema, version
#   config/              YAML -> validated settings
#   yaml_text.py         the one reader of YAML: lines, keys given twice
#   suggest.py           "did you mean …?"
#   supervisor.py        the parent: owns listening sockets, starts control and workers again, passes signals on
#   channel.py           the messages between control and workers, and how they are framed
#   data/                one worker: what a produced byte passes through
#   control/             one per gateway: metadata, usage log, metrics, admin server
#   kafka/               how brokers are reached and asked; the internal topics
#   embedded.py, demo.py a real Kafka for demo and tests, and the demo
#   audit/               the PySpark audit
#
# Who imports whom: data and control share channel.py and nothing else here; nothing imports cli.py, demo.py or audit/.
