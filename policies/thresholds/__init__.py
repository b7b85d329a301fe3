# Thresholds of brokers and topics (V1).
#
# values.py         which numbers can be thresholds, and how it is said that some don't fit
# sums.py           what topics take of each broker's total together
# broker_thresholds.py
#                   what one broker may get: its total, its topics' own thresholds, and what the others share
# broker_limits.py  the limits of one broker, asked about a request and about themselves: thresholds and the queue of
#                   all its producers
# strategy.py       what thresholds do about requests beyond them: one interface
# rejecting.py      thresholds by rejection: the one-minute rate decides
# bursting.py       the same, with a bound on what passes before the average shows it
# pacing.py         thresholds by delay: two debts, the shorter one is waited for
# buckets.py        the token buckets of a total and its topics, which both of these go by
# claims.py         what topics claim of a total that several processes share
