# Client quotas (KIP-546).
#
# names.py           who a quota is for and what it limits: names and their spellings
# filter.py          which quotas a request of Kafka's protocol describes
# store.py           all quotas, and which of them holds for a user and a client id
# text.py            what `kafka-quotas` reads and prints
# quota_limiters.py  quotas at work: the limiters, and shares of a total
