# From an accepted descriptor to a relayed connection.
#
#   addresses.py     where connections come from, and how many there are from each address
#   arrivals.py      a connection before a broker is dialled for it: TLS, its principal, first request
#   connections.py   from an accepted descriptor to a relayed connection; drain
#   dialling.py      a connection to a broker
#   proxied.py       before that, of one through a proxy: where its client is
#   upstream_tls.py  its TLS: certificates, handshake
#   opening.py       the head of a connection's first request
#   tls_sessions.py  which of the sessions that a broker gave is offered next
#   handshakes.py    its handshakes, which take turns
