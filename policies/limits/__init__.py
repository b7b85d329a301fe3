# Limits by rate: what they are made of.
#
# bucket.py       token bucket with a bounded debt
# limiter.py      one limit that everybody under it waits for, and whom it turns away
# limit_use.py    how much of a bucket's limit is used, over 10 seconds as Kafka's quotas compute it
# description.py  what a limit says of itself: numbers, level and words
