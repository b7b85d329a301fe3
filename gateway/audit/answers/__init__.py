# How answers leave the audit: rows that are read one after the other, never all held at once.
#
#   answer.py   an answer, and its forms: table, JSON, YAML, CSV, lines of JSON: pure
#   files.py    files that appear whole, Parquet, Delta tables
#   options.py  -o and --output
#   windows.py  days, months … of a time zone: pure
