# Thresholds of brokers and topics (V1).
#
# values.py         checked thresholds, implicit shares, and what a strategy for them has to say
# rejecting.py      thresholds by rejection: the one-minute rate decides
# pacing.py         thresholds by delay: two debts, the shorter one is waited for
# broker_meters.py  what one broker gets; which topics the hot path has to ask about
