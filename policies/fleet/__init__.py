# Limits that hold over several processes.
#
# keys.py           names of such limits
# page.py           what the workers of one gateway took of each, in memory that they share
# shared_bucket.py  one bucket of all of these workers
# demand.py         what this process takes of limits of several gateways, and reports
# shares.py         how such limits are allocated to gateways
# fleet_limiter.py  this gateway's share of each limit, and limiters that go by it
