# Who may send how much: numbers in, verdicts out. The standard library and re2 only; no I/O, no clock (`now` is an
# argument), no logging, and no knowledge of the wire.
#
# decision.py     what a limit is, and how several of them become one verdict
# engine.py       thresholds, storage factor and groups of one worker; its ticks             [V1]
# broker_meters.py  what one broker gets; which topics the hot path has to ask about        [V1]
# rejecting.py    thresholds by rejection: the one-minute rate decides                      [V1]
# pacing.py       thresholds by delay: two debts, the shorter one is waited for
# line.py         one limit that everybody under it waits for, and whom it turns away
# bucket.py       token bucket with a bounded debt
# meter.py        one-minute EWMA as Kafka's own meters compute it
# thresholds.py   checked thresholds, implicit shares, what a strategy for them has to say  [V1]
# plugin.py       what a policy of the operator's own has to look like
# verdict.py      what a policy says and why; which error code a client understands
# quota_names.py, quota_filter.py, client_quotas.py, quota_text.py: who a client quota is for, and which one holds [546]
# quota_lines.py  client quotas at work: the lines, and shares of a total
# groups.py, group_names.py: which resource group traffic is in, and what its limits are called  [PIP82]
# group_lines.py  resource groups at work: the lines, and which topics have to ask        [PIP82]
# fleet_keys.py   names of limits that hold over several processes
# fleet_lines.py, demand.py: our part of these limits, and what we tell of them
# shares.py       limits of a whole fleet: what each gateway and worker may take        [PIP82]
# policy_set.py   what may be changed at run time: the file's values, those set since, and what wins
# storage.py      volumes, limits, the factor, and what holds while nobody knows           [DISK, 035]
# explain.py      every rule that looks at some traffic, put beside each other for people
# fence.py        idempotent producers: what is rejected behind a rejected batch
# duplicates.py   idempotent batches acknowledged a second time; repeats.py: rejected ones that come again
# replay.py       recorded usage decided once more by other policies: differences; tick_phase.py: when workers ticked
# replay_rows.py, replay_lines.py, held.py: what it takes and gives, limits that delay, and what stands in for clients
# text.py         text of somebody else's, fit for a log line
# units.py        sizes, rates and durations as text: parsed and printed
# usage.py        the usage record: fields and types, for the writer and the audit
