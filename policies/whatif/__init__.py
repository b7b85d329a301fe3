# Recorded usage, decided once more by other policies.
#
# replay.py         what would have got in, and what not: differences
# rows.py           what a replay takes and gives
# timetable.py      which policies were in force when
# replay_limits.py  limits that delay, in a replay
# client.py         what stands in for clients: what they hold and send again
# tick_phase.py     when workers ticked
