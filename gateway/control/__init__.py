# The control process, one per gateway: everything that may take its time, so that the data path never waits for it.
#
#   __main__.py          started by the parent: python -m gateway.control --fd N
#   app.py               composition root: build, who follows which fact, nest nurseries, start, drain
#   facts.py             the four facts that parts follow: configuration, policies, cluster, storage factor
#   context.py           what every part gets: these facts, metrics, clocks, the parent
#   outside.py           what is reached outside the process, and how it is made
#   lifecycle/           from one configuration to the next
#   components/          what may be unusable, and is done without once the gateway was up
#   gateway_health.py    whether the gateway is ready, and what it goes on without
#   cluster/             the upstream cluster, as its brokers describe it
#   workers/             the workers: connections and snapshots down, intervals and rates up
#   policies/            policies at run time: service, store, Kafka's admin APIs
#   fleet/               limits that hold for several gateways
#   storage/             storage protection
#   usage/               what happened to clients' bytes: the usage log, and the last minutes for the API
#   sasl/                SASL that ends at the gateway
#   metrics/             every metric, by subject and in one table
#   admin/               what the admin server answers: metrics, API, console
#   access/              who asks on the admin port, and whether that one may; its TLS
#   http_server.py       HTTP for it: connections, their places and time
#   asgi.py              what the applications behind it share: headers, bounded bodies, responses
#   admission.py         how many connections there may be, in all and from one address
#   rates.py             what several workers measured, as one gateway's
#   query_tasks.py       tasks that answer workers' questions about clients' requests, a bounded number at once
#   internal_errors.py   an error in what is done for one client ends that, and not the process
