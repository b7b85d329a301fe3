# Policies against recorded usage.
#
#   command.py, recommend_command.py  options and files
#   history.py                        changes at run time, as a gateway tells them: pure
#   reading.py                        the records, each once, with their rows in pieces, and their replay; over Spark
#   local_reading.py                  the same without Spark
#   pieces.py                         from a line of text to pieces, and from a piece to rows: pure
#   batches.py                        pieces and sums as Arrow
#   whatif.py                         the answer, of a replay in either engine: pure
#   task.py                           the replay itself, of the pieces that one process gets: pure
#   text.py                           how its answer is shown: pure
#   recommend.py                      thresholds from usage: pure
#   rates.py                          the rates that these follow from, over Spark
