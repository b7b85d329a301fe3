# From one configuration to the next.
#
#   examination.py   faults of a configuration beyond those that its sections refuse
#   file_watch.py    whether files have changed
#   reload.py        reads the configuration again, and reports the result
#   config_switch.py publishes another configuration, so that it holds in all parts at once
