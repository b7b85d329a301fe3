# Many gateways as one: what they say to each other about the use of limits that they share. Source: PIP-82,
# "Communications between brokers".
#
#   resource_usage_pb2.py  the message, generated from resource_usage.proto
#   form.py                its bytes
#   names.py               names that are remembered by number
#   reports.py             what this gateway says
#   peers.py               what it has heard
#   exchange.py            the topic that carries it
