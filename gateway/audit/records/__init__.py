# Usage records: which lines are some, the same as Arrow, and their sums. Without Spark.
#
#   decoding.py          the one decoder: which lines are usage records, and why not
#   record_batches.py    records as Arrow
#   record_files.py      files of the table `records`, made as records are decoded
#   usage_sums.py        files of the tables of sums
#   table_files.py       files of any table
#   condensing.py        sums and runs of numbers, made as records are decoded
