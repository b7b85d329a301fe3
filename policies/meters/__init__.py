# How much comes: numbers, by broker and by topic. Limits ask them; they know no limit.
#
# meter.py          one-minute EWMA as Kafka's own meters compute it; when meters tick
# topic_meter.py    what one topic brings to one broker; whether any limit has to be asked about its next batch
# broker_meters.py  what one broker gets; which topics there are                            [V1]
