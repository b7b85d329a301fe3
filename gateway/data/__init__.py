# One worker, the data plane: all that a produced byte passes through. Started by the parent (gateway/supervisor.py).
#
#   __main__.py           started by the parent: python -m gateway.data --fd N --worker W
#   worker.py             composition root: the conversation with control, and what a worker consists of
#   uplink.py             messages, log lines and questions to control, while there is one
#   farewell.py           how a connection ends that the gateway ends of its own accord
#   departures.py         whose turn it is when all connections have to end
#   connections.py        from an accepted descriptor to a relayed connection; drain
#   arrivals.py           a connection before a broker is dialled for it: TLS, its principal, first request
#   proxied.py            before that, of one through a proxy: where its client is
#   addresses.py          where connections come from, and how many there are from each address
#   dialling.py           a connection to a broker
#   securing.py           its TLS: certificates, handshake
#   tls_sessions.py       which of the sessions that a broker gave is offered next
#   clockwork.py          ticks, pacing, shares of quotas, rates and gauges
#   intervals.py          when an interval ends; those that control has not confirmed
#   storage_follower.py   the storage factor, its expiry, and what goes on after a pause
#   share_reporter.py     this worker's part of limits that several processes share
#   lowest_factor.py      the lowest storage factor of an interval
#   listing.py            the list of connections, when somebody asks for it
#   complaints.py         how many lines clients may cause in the log
#   opening.py            the head of a connection's first request
#   tls.py                TLS between a socket and its link, in memory
#   handshakes.py         its handshakes, which take turns
#   reactor.py            one epoll inside trio, timers
#
#   links.py              one client socket and its upstream socket
#   shortcut.pyx          past it, for the events that bring nothing unusual; only compiled
#   no_shortcut.py        what a link has instead where nothing is compiled
#   slices.py             the loop over events, for a slice of time; compiled where it can be
#   calls.py              the calls of the system that these make
#   tls_links.py          the same where one of them, or both, speak TLS
#   sides.py              one of the two: what is read from it, what it has still to take
#   inbound.py            where a side reads into
#   outbound.py           what a side sends, at once or later
#   parked.py             what was read and has to wait
#   watch.py              when a client or a broker takes too long
#   errors.py             the errors that end connections
#   ends.py               what the log says of those that end
#   budget.py             the bound on what all connections hold
#   relief.py             which connections end when memory is short
#
#   session.py            sans-IO: joins the parts below for one connection
#   requests.py           from the client's bytes to what goes upstream
#   fast_path.pyx         the usual requests and answers, by the run; only compiled
#   enforcement.py        the gate's verdict on a Produce request, carried out
#   answers.py            from the broker's bytes to what the client gets
#   fetches.py            what Fetch requests may ask for, and what their answers are charged
#   dispatch.py           the same for resource groups with a dispatch limit
#   lookup.py             names of topic ids that this worker doesn't know
#   authentication.py     the principal, by SASL or else by certificate
#   termination.py        the same where SASL ends here
#   admin_requests.py     admin requests that control answers
#   admin_turn.py         one of them
#   in_flight.py          requests that are owed an answer, in order; compiled where it can be
#   pending.py            the kinds of what they are owed
#   hold.py               what makes requests wait
#   steps.py              what becomes of one request, as a value
#
#   gate.py               sans-IO: what may pass
#   accounts.py           sans-IO: how every byte is counted, and given back to limits where it is lost
#   client.py             sans-IO: who the client is, and the quotas and the group that this brings
#   topics.py             sans-IO: names and meters of the topics in its requests
#   world.py              what all sessions share: the latest snapshots
#   ledger.py             the interval's counters; compiled where it can be
#   latencies.py          sans-IO: how long Produce requests take
