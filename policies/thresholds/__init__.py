# Thresholds of brokers and topics (V1).
#
# values.py         which numbers can be thresholds, and how it is said that some don't fit
# sums.py           what topics take of each broker's total together
# topic_meter.py    what one topic brings to one broker; whether anybody has to be asked about its next batch
# broker_meters.py  what one broker gets; which topics there are
# broker_thresholds.py
#                   what one broker may get: its total, its topics' own thresholds, and what the others share
# broker_limits.py  the limits of one broker, asked about a request: thresholds and the queue of all its producers
# storage_limits.py what storage says: the pause, queues while disks fill up, and the topics that are held
# strategy.py       what thresholds do about requests beyond them: one interface
# rejecting.py      thresholds by rejection: the one-minute rate decides
# bursting.py       the same, with a bound on what passes before the average shows it
# pacing.py         thresholds by delay: two debts, the shorter one is waited for
