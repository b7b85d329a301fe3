# The workers of this gateway: what they get, and what they send.
#
#   workers.py             the channels to them: snapshots down, intervals and rates up
#   acceptor.py            accepts clients' connections, and hands them over
#   refusals.py            logs connections that were refused
#   snapshot_publisher.py  sends them what is new in the facts that they go by
#   snapshots.py           that as messages
#   effects.py             what the limits in force can do to Produce requests, for the metrics
#   interval_receiver.py   workers' intervals, into the usage log and everything else that counts them
#   inquiries.py           questions to all workers, such as which connections there are
