# Roll-ups: tables that follow from `records`, brought up to it a piece at a time, so that a question about any hour
# costs that hour. `usage_1m`, `usage_1h`, `usage_1d` are sums; `progress` says how far all have come, with the runs of
# each life's numbers and the counts of records up to there. Whatever they don't hold yet is read from `records`.
#
#   windows.py   which table answers which part of a question's time: pure
#   runs.py      runs of numbers, joined: pure
#   progress.py  the table `progress`, and the records behind it
#   steps.py     which records come in one step: pure
#   update.py    brings them up to `records`; one row for each window and group again
#   reading.py   a question's rows, numbers and counts
