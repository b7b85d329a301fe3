# The audit of the usage log, on Spark: what it sums up, what it writes down, what it is asked.
#
# Commands: options, exit codes, what goes to stdout. PySpark is imported only after the options are known to be right.
#   __main__           the command for `python -m gateway.audit` and for spark-submit
#   cli                the audit itself; manners, sources and option parsing that all commands share
#   commands           stream, compact, expire
#   top_command, report_command, recommend_command, whatif_command, reconcile_command     one command each
#
# From text to sums:
#   schema             the usage record as Spark reads it, and the columns that the audit gives back
#   transforms         decode, count once, sum up, find gaps: pure, DataFrame to DataFrame
#   job                the session, the sources (topic, spool, tables), the run to a Report
#   brokers            what brokers are asked directly: offsets, a topic's id, how large logs are
#   connector          the jars that PySpark lacks
#   progress, errors   how far Spark is; what went wrong, in one line
#
# Tables:
#   layout             their columns, and the version of it all
#   store              where they lie, as Delta Lake tables: reading, adding a batch, who may add
#   stream             from the topic into them
#   upkeep             compact and expire
#
# Answers, pure (numbers in, text out) but for the first three, which ask Spark:
#   report, top, recommend        what the page shows; who had most; thresholds from usage
#   whatif, whatif_text           the replay of a policy over the usage log; how it is shown
#   reconcile                     sums against the growth of the brokers' logs
#   dropped                       rejected attempts against bytes that never got in
#   tables                        a Report as text and JSON
#   page, plots                   the report's HTML and SVG
#
# Only gateway.cli imports this package, when the command is asked for. This package imports `policies` (records,
# replay, thresholds), and of the gateway `embedded` (the cache, which Java to take), `config` and `policy.document`
# (files that what-if and recommend read and write), and nothing else.
