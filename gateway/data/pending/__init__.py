# Requests of one connection that wait, or are owed an answer.
#
#   in_flight.py  requests that are owed an answer, in order; compiled where it can be
#   pending.py    the kinds of what they are owed
#   hold.py       what makes requests wait
#   steps.py      what becomes of one request, as a value
