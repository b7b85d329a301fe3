# What changes in a message that is relayed, and what is seen of clients as it passes.
#
# rewrite.py           ApiVersions caps; host and port in Metadata, FindCoordinator, DescribeCluster; topic ids
# metadata_topics.py   the ids in a Metadata answer about any number of partitions; compiled where it can be
# stream.py            addresses in Fetch, ShareFetch and ShareAcknowledge answers that are never held whole
# identity.py          client software and SASL principals
