# Many gateways as one: what they say to each other about the use of limits that they share. `resource_usage.proto` is
# the message, `form.py` its bytes, `names.py` what is remembered by number, `reports.py` what is said, `peers.py` what
# was heard, `exchange.py` the topic that carries it. Source: PIP-82, "Communications between brokers".
