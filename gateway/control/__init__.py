# The control process, one per gateway: everything that may take its time, so that the data path never waits for it.
#
#   __main__.py          started by the parent: python -m gateway.control --fd N
#   app.py               composition root: build, nest nurseries, start, drain
#   parts.py             what may be unusable, and is done without once the gateway was up
#   acceptor.py          accepts clients' connections, and hands them over to workers
#   admission.py         how many connections there may be, in all and from one address
#   cluster.py           brokers, topic leaders, topic ids; a listener per broker
#   workers.py           the channels to the workers: snapshots down, intervals and rates up
#   snapshots.py         what workers are told, from the configuration and the policies
#   rates.py             what several workers measured, as one gateway's
#   fleet.py             shares of limits that hold for several workers or gateways
#   fleet_keys.py        which limits are in use, and how far each holds
#   fleet_rates.py       what all others bring to each broker
#   usage_log.py         intervals -> spool on disk -> usage topic
#   recent.py            what policies did lately, for the API
#   traffic_lines.py     what the log says of traffic, so many lines a minute
#   metrics.py           every metric in one table
#   admin.py             the admin server: /metrics, /healthz, /readyz, and the API beside them
#   rest/                the API
#   policies/            policies at run time: service, store, Kafka's admin APIs
#   storage.py           the storage factor: asked, kept, told
#   storage_sources.py   from the configuration to what is looked at
