# Who may send how much: numbers in, verdicts out. Standard library only; no I/O, no clock (`now` is an argument), no
# logging, and no knowledge of the wire.
#
# engine.py       the one entry of the hot path: which topics are over, per broker        [V1]
# pacing.py       thresholds by delay: two debts, the shorter one is waited for
# bucket.py       token bucket with a bounded debt
# meter.py        one-minute EWMA as Kafka's own meters compute it
# thresholds.py   checked thresholds, implicit shares                                     [V1]
# plugin.py       what a policy of the operator's own has to look like
# verdict.py      what a policy says and why; which error code a client understands
# fence.py        idempotent producers: what is rejected behind a rejected batch
# duplicates.py   idempotent batches acknowledged a second time
# usage.py        the usage record: fields and types, for the writer and the audit
