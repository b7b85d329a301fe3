# Policies against recorded usage.
#
#   command.py, recommend_command.py  options and files
#   whatif.py                         the replay of a policy, over Spark
#   text.py                           how its answer is shown: pure
#   recommend.py                      thresholds from usage
