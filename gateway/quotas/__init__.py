# Client quotas for those who administer them: the client, and `kafka-quotas` on top of it.
