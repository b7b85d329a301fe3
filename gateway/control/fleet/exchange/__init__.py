# Many gateways as one: what they say to each other about the use of limits that they share. Source: PIP-82,
# "Communications between brokers".
#
#   resource_usage_pb2.py  the message, generated from resource_usage.proto
#   usage_codec.py         its bytes
#   reports.py             what this gateway says
#   peers.py               what it has heard
#   writer.py, reader.py   clients of the topic that carries it
#   health.py              whether that works
#   exchange.py            when what is said and heard; how the topic is made
