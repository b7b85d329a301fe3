# The control process, one per gateway: everything that may take its time, so that the data path never waits for it.
#
#   __main__.py          started by the parent: python -m gateway.control --fd N
#   app.py               composition root: build, nest nurseries, start, drain
#   orders.py            what workers go by: the configuration in force, and the policies over it
#   reload.py            reads the configuration again: when, and what comes of it
#   file_watch.py        whether files have changed
#   takeover.py          makes another configuration hold in all parts at once
#   condition.py         whether the gateway is ready, and what it goes on without
#   parts.py             what may be unusable, and is done without once the gateway was up
#   examination.py       what is wrong with a configuration, beyond what its sections refuse
#   acceptor.py          accepts clients' connections, and hands them over to workers
#   admission.py         how many connections there may be, in all and from one address
#   refusals.py          says that connections were refused
#   cluster.py           the upstream cluster: asked again and again, workers told what is new
#   metadata.py          what its brokers say: brokers, topic leaders, topic ids
#   listeners.py         a socket for each broker where it needs one, and the addresses that clients are told
#   workers.py           the channels to the workers: snapshots down, intervals and rates up
#   question_tasks.py    tasks that answer workers' questions about clients' requests, a bounded number at once
#   internal_errors.py   an error in what is done for one client ends that, and not the process
#   inquiries.py         questions to all workers: which connections there are
#   intake.py            workers' intervals, into the usage log and everything that counts them
#   snapshots.py         what workers are told, from the configuration and the policies
#   effects.py           what the limits in force can do to what is produced, for the metrics
#   rates.py             what several workers measured, as one gateway's
#   fleet.py             shares of limits that hold for several workers or gateways
#   fleet_keys.py        which limits are in use, and how far each holds
#   fleet_rates.py       what all others bring to each broker
#   fleet_reach.py       whether other gateways can be heard
#   spooling.py          the usage log as a part of control: as soon as its spool can be had
#   usage_log.py         intervals -> spool on disk -> usage topic
#   recent.py            what policies did lately, for the API
#   timeline.py          the traffic of the last hour, for the API
#   traffic_lines.py     what the log says of traffic, so many lines a minute
#   authentication.py    SASL that ends at the gateway, and what brokers are told for each client
#   decoys.py            records of names that nobody has, for challenges that tell nobody so
#   credentials.py       what passwords are known by, and the gateway's own: files, the operator's command
#   bearer.py            JWTs, by the issuer's keys
#   turns.py             who is next where many wait, fairly by address
#   metrics/             every metric, by subject and in one table
#   admin.py             the admin server: /metrics, /healthz, /readyz, and the API beside them
#   http_server.py       HTTP for it: connections, their places and time
#   admin_tls.py         TLS of the admin server
#   when_asked.py        what is beside them: made when it is first asked for
#   brokers_time.py      what time it is, by the brokers
#   broker_quotas.py     the brokers' own client quotas
#   access/              who asks on the admin port, and whether that one may
#   rest/                the API
#   console/             pages for people, which ask the API
#   policies/            policies at run time: service, store, Kafka's admin APIs
#   protection.py        storage protection as a part of control: as soon as its view of the disks can be had
#   storage.py           the storage factor: asked, kept, told
#   storage_outlook.py   how fast disks fill, with whose bytes, and whether limits leave room
#   storage_log.py       what of it is logged and counted
#   storage_hand.py      an operator's hand on it
#   storage_sources.py   from the configuration to what is looked at
