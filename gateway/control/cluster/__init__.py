# The upstream cluster, as its brokers describe it.
#
#   cluster.py         asks it again and again, and sends workers the news
#   metadata.py        brokers, topic leaders, topic ids
#   listeners.py       a socket for each broker where it needs one, and the addresses that clients get
#   brokers_time.py    the time by the brokers' clocks
#   broker_quotas.py   the brokers' own client quotas
#   client_names.py    whether brokers know clients by other names
