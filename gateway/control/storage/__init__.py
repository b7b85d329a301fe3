# Storage protection in the control process. Its rules are policies/storage/, its sources gateway/storage/.
#
#   service.py           storage protection as the rest of control sees it
#   context.py           what it needs of the rest of control
#   storage_control.py   the schedule: the factor, and the topics that it affects, sent to workers
#   sources.py           from the configuration to the sources that are asked
#   override.py          the operator's override
#   forecast.py          how fast disks fill, with whose bytes, and whether limits leave room
#   status.py            what REST shows
#   reporting.py         log lines and metrics
