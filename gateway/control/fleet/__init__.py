# Limits that hold for several gateways.
#
#   shares.py          this gateway's share of each, which its workers learn
#   limits_in_use.py   the limits that workers use now, and how far each holds
#   peer_rates.py      the traffic that all others bring to each broker
#   reachability.py    whether other gateways can be heard
#   exchange/          what gateways say to each other about the use of limits
