# The rules of who may send how much: numbers in, verdicts out. Standard library only; no I/O, no clock (`now` is an
# argument), no logging, and no knowledge of the wire.
#
# decision.py     what a limit is, and how several of them become one verdict
# verdict.py      what a limit says and why; which error code a client understands
# engine.py       thresholds, storage factor and groups of one worker; its ticks            [V1]
# limits/         what limits are made of: token buckets, lines, meters
# thresholds/     thresholds that reject or delay, and the meters of one broker             [V1]
# quotas/         client quotas: who one is for, which one holds, and the lines at work     [546]
# groups/         resource groups: what is in which, and the lines at work                  [PIP82]
# fleet/          limits that hold over several processes: keys, demand, shares, parts      [PIP82]
# storage/        volumes, limits, the factor, whom it holds, and what holds while nobody knows [DISK, 035]
# plugin.py       what a policy of the operator's own has to look like
# client_timeouts.py
#                 for how long producers wait for an answer, and may be kept waiting
# rollout.py      which clients a policy is enforced for while it is brought in by steps
# fence.py        idempotent producers: what is rejected behind a rejected batch
# duplicates.py   idempotent batches acknowledged a second time
# repeats.py      rejected batches that come again
# policy_values.py, policy_set.py, policy_records.py
#                 what may be changed at run time: one value; the file's and those set since; how they are written down
# fitting.py      which of many thresholds go together
# small_limits.py which limits are so small that nobody means them
# explain/        every rule that looks at some traffic, put beside each other for people
# whatif/         recorded usage decided once more by other policies: differences
# usage.py        the usage record: fields and types, for the writer and the audit
# text.py         foreign text, made fit for a log line
# units.py        sizes, rates and durations: read and printed
