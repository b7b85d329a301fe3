# What the audit's tables are; store.py beside this folder reads and writes them.
#
#   layout.py            their columns, as Spark has them
#   table_log.py         what every engine knows of them: names, days, the version of it all
#   table_version.py     Delta Lake's log by deltalake: identifiers, files, commits
#   storage.py           where they lie, for Spark and for deltalake

import os

# deltalake reads it once, and would print what it meets in a commit, which is told in our words.
os.environ.setdefault("RUST_LOG", "error")
