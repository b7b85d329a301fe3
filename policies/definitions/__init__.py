# Policies as they are defined: what may be set, what holds of it now, how it is written down.
#
#   policy_values.py    one value
#   policy_set.py       the file's and those set since
#   policy_records.py   how they are written down
#   rollout.py          which clients a policy is enforced for while it is brought in by steps
#   fitting.py          which of many thresholds go together
#   small_limits.py     which limits are too small to be intended
