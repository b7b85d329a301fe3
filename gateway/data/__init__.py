# One worker, the data plane: all that a produced byte passes through. Started by the parent (gateway/supervisor.py).
#
#   __main__.py          started by the parent: python -m gateway.data --fd N --worker W
#   worker/              the worker as a whole: its parts, ticks, intervals, reports
#   connecting/          from an accepted descriptor to a relayed connection
#   relay/               pairs of sockets: what passes between them, what waits, how they end
#   sockets/             sockets, TLS and the reactor
#   session/             sans-IO: one connection's requests, verdicts and answers
#   control_requests/    sans-IO: a client's requests for which control is asked
#   pending/             sans-IO: requests that wait, or are owed an answer
#   shared/              what connections share: state, counters, memory, errors
#
# Imports go downwards: worker, connecting, relay, session, control_requests, pending, shared; relay also stands on
# sockets, which stands on shared.
