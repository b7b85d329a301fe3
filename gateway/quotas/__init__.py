# Client quotas for programs that administer them, of a gateway or a cluster.
#
#   client.py  describe and alter
