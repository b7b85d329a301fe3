# What the audit's tables are; store.py beside this folder reads and writes them.
#
#   layout.py            their columns, as Spark has them
#   table_log.py         what every engine knows of them: names, days, the version of it all
