# The audit on one machine, without Spark and Java: the same answers from spool files and topics of some gigabytes, and
# from tables.
#
#   opening.py   the sources, and whether they belong here
#   records.py   the run: each line decoded once, its rows added up at once
#   sums.py      sums by group: pure
#   lives.py     each life's numbers: which record is a copy, what is missing: pure
#   links.py     whether a life's records follow each other, as their digests say: pure
#   run_lives.py the same of runs of numbers, as tables have them: pure
#   spool.py     lines of spool files
#   topic.py     values of the usage topic
#   tables.py    the tables of a stream, by deltalake and DuckDB
#
# One process decodes with msgspec (decoding.py) and adds up in dicts, which took less CPU than DuckDB did, with checks
# as strict. Memory grows with groups of the answer, and by 24 bytes a record; never with the length of the input. Of
# tables, DuckDB holds the groups, on disk where they are many.
