# Sockets and the reactor: reading, sending, TLS, events. Knows no Kafka but the heads of frames.
#
#   calls.py     the calls of the system that these make
#   inbound.py   where a side reads into
#   outbound.py  what a side sends, at once or later
#   tls.py       TLS between a socket and its link, in memory
#   reactor.py   one epoll inside trio, timers
#   slices.py    the loop over events, for a slice of time; compiled where it can be
