# One worker, the data plane: all that a produced byte passes through. Started by the parent (gateway/supervisor.py).
#
#   __main__.py           started by the parent: python -m gateway.data --fd N --worker W
#   worker.py             composition root: the conversation with control, and what a worker consists of
#   uplink.py             messages, log lines and questions to control, while there is one
#   connections.py        from an accepted descriptor to a relayed connection: TLS, first request, dialling; drain
#   clockwork.py          ticks, pacing, shares of quotas, rates and gauges
#   intervals.py          when an interval ends; those that control has not confirmed
#   storage_follower.py   the storage factor, its expiry, and what goes on after a pause
#   share_reporter.py     this worker's part of limits that several processes share
#   lowest_factor.py      the lowest storage factor of an interval
#   complaints.py         how many lines clients may cause in the log
#   opening.py            the head of a connection's first request
#   tls.py                TLS between a client's socket and its link
#   reactor.py            one epoll inside trio, timers
#   links.py              one client socket and its upstream socket
#   inbound.py            where links read into
#   budget.py             the bound on what they hold
#   session.py            sans-IO: frames in, runs out; the order of answers
#   fetches.py            sans-IO: Fetch requests and what their answers are charged
#   admin_turn.py         sans-IO: an admin request that control answers
#   gate.py               sans-IO: what may pass, and how every byte is counted
#   world.py              what all sessions share: the latest snapshots
#   ledger.py             the interval's counters
