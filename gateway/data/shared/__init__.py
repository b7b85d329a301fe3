# What all connections of a worker share: state, counters, memory, the way to control.
#
#   client.py           sans-IO: who the client is, and the quotas and the group that this brings
#   latencies.py        sans-IO: how long Produce requests take
#   ledger.py           the interval's counters; compiled where it can be
#   topics.py           sans-IO: names and meters of the topics in its requests
#   worker_state.py     what all sessions share: the latest snapshots
#   budget.py           the bound on what all connections hold
#   warning_limiter.py  how many lines clients may cause in the log
#   drain_schedule.py   whose turn it is when all connections have to end
#   uplink.py           messages, log lines and questions to control, while there is one
#   admin_turn.py       one of them
#   errors.py           the errors that end connections
