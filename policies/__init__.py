# The rules of who may send how much: numbers in, verdicts out. Standard library only; no I/O, no clock (`now` is an
# argument), no logging, and no knowledge of the wire.
#
# decision.py     what a limit is, and how several of them become one verdict
# verdict.py      what a limit says and why; which error code a client understands
# engine.py       thresholds, storage factor and groups of one worker; its ticks            [V1]
# limited_broker.py
#                 one broker: its meters, and the limits that ask them
# meters/         how much comes, by broker and by topic                                    [V1]
# limits/         what limits are made of: token buckets, queues, and how much of them is used
# thresholds/     thresholds that reject or delay                                           [V1]
# quotas/         client quotas: who one is for, which one holds, and its limiters     [546]
# groups/         resource groups: what is in which, and their limiters                  [PIP82]
# fleet/          limits that hold over several processes: keys, demand, shares, parts      [PIP82]
# definitions/    what may be set, what holds of it now, how it is written down
# idempotence/    batches that come again, or in order only
# storage/        volumes, limits, the factor, which topics it holds, what applies while nothing is known [DISK, 035]
# plugin.py       what a policy of the operator's own has to look like
# client_timeouts.py
#                 for how long producers wait for an answer, and may be kept waiting
# explain/        every rule that looks at some traffic, put beside each other for people
# whatif/         recorded usage decided once more by other policies: differences
# usage.py        the usage record: fields and types, for the writer and the audit
# record_digests.py
#                 digests that chain a life's usage records, so that a change shows
# text.py         foreign text, made fit for a log line
# units.py        sizes, rates and durations: read and printed
