# Connections as pairs of sockets: what passes between them, what waits, how they end.
#
#   links.py           one client socket and its upstream socket
#   sides.py           one of the two sockets: what is read from it, what it has still to take
#   states.py          the states of a link and of its sides, and what leads from one to the next
#   tls_links.py       the same where one of them, or both, speak TLS
#   shortcut.pyx       past it, for the events that bring nothing unusual; only compiled
#   no_shortcut.py     what a link has instead where nothing is compiled
#   parked.py          what was read and has to wait
#   watch.py           when a client or a broker takes too long
#   disconnect_log.py  what the log says of those that end
#   relief.py          which connections end when memory is short
