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
#
#   links.py              one client socket and its upstream socket
#   sides.py              one of the two: what is read from it, what it has still to take
#   inbound.py            where a side reads into
#   outbound.py           what a side sends, at once or later
#   parked.py             what was read and has to wait
#   watch.py              when a client or a broker takes too long
#   ends.py               why connections end, and what the log says of it
#   budget.py             the bound on what all connections hold
#   relief.py             which connections end when memory is short
#
#   session.py            sans-IO: joins the parts below for one connection
#   requests.py           from the client's bytes to what goes upstream; the fast path
#   enforcement.py        the gate's verdict on a Produce request, carried out
#   answers.py            from the broker's bytes to what the client gets
#   fetches.py            what Fetch requests may ask for, and what their answers are charged
#   dispatch.py           the same for resource groups with a dispatch limit
#   lookup.py             names of topic ids that this worker doesn't know
#   authentication.py     the principal, by SASL
#   admin_requests.py     admin requests that control answers
#   admin_turn.py         one of them
#   in_flight.py          requests that are owed an answer
#   hold.py               what makes requests wait
#   steps.py              what becomes of one request, as a value
#
#   gate.py               sans-IO: what may pass, and how every byte is counted
#   world.py              what all sessions share: the latest snapshots
#   ledger.py             the interval's counters
