# Policies against recorded usage.
#
#   command.py, recommend_command.py  options and files
#   history.py                        changes at run time, as a gateway tells them: pure
#   reading.py                        the records, each once, with their rows in pieces; over Spark
#   pieces.py                         from a line of text to pieces, and from a piece to rows: pure
#   whatif.py                         the replay of a policy, over Spark
#   task.py                           the part of it that runs in each of Spark's Python processes: pure
#   text.py                           how its answer is shown: pure
#   recommend.py                      thresholds from usage
