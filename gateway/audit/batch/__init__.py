# The audit as one batch: from text to a Report, and how that is shown.
#
#   transforms.py     decode, count once, sum up, find gaps: pure, DataFrame to DataFrame
#   query.py          the question, its answer, what either engine gives: pure
#   groups.py         rows of an answer one after the other, by Spark
#   ranking.py        the largest groups, by Spark
#   rollups/          tables of sums that follow from the records of a stream's tables
#   spark_sources.py  the usage topic and spool files, as text
#   job.py            from the text, or from tables, to a Report
#   views.py          the tables as SQL views of a session
#   dropped.py        rejected attempts against bytes that never got in: pure
#   tables.py         a Report as text and data: pure
