# The worker as a whole: its composition root, its clock and its reports.
#
#   worker.py            composition root: the conversation with control, and what a worker consists of
#   periodic_tasks.py    ticks, pacing, shares of quotas, rates and gauges
#   idle.py              when periodic tasks run seldom, as there is no traffic
#   intervals.py         when an interval ends; those that control has not confirmed
#   lowest_factor.py     the lowest storage factor of an interval
#   listing.py           the list of connections, on request
#   share_reporter.py    this worker's part of limits that several processes share
#   storage_follower.py  the storage factor, its expiry, and what goes on after a pause
