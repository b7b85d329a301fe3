# From one configuration to the next.
#
#   examination.py   faults of a configuration beyond those that its sections refuse
#   file_watch.py    whether files have changed
#   reload.py        reads the configuration again, has it hold in all parts at once, and reports the result
