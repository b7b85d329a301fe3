# The audit of the usage log, on Spark or on this machine alone: what it sums up, what it writes down, what it is asked.
#
#   __main__.py          the command for `python -m gateway.audit` and for spark-submit
#   cli.py               the audit itself; manners, sources and option parsing that all commands share
#   batch/               one batch: from text to a Report
#   answers/             forms and files in which answers leave
#   questions/           cost, episodes, service levels
#   local/               the same answers without Spark
#   stream/              the topic into tables, and their upkeep
#   report/              the report and the ranking
#   whatif/              what-if and recommendations
#   storage/             what fills volumes
#   reconcile/           sums against the brokers' logs
#   engines.py           which of the two it is
#   records/             usage records decoded, as Arrow, and summed up: without Spark
#   spark/               what Spark needs: jars, types; and how far it is
#   tables/              the Delta Lake tables: columns, names
#   store.py             reading them, adding a batch, who may add
#   class_data.py        an archive of Spark's classes, so that a session starts in half of the time
#   columns.py           the columns of answers
#   addresses.py         whether any broker can be reached
#   cluster_access.py    librdkafka's clients by the Java client's properties
#   topic_range.py       the usage topic's offsets
#   errors.py            what went wrong, in one line
#
# Commands import PySpark only after the options are known to be right. Only gateway.cli imports this package, when the
# command is asked for. This package imports `policies` (records, replay, thresholds), and of the gateway `embedded`
# (the cache, which Java to take), `config` and `policy_document` (files that what-if and recommend read and write),
# `kafka` (the usage topic's name; librdkafka's properties and errors, and what it has no request for), `commands` (how
# YAML is printed), and nothing else; `reconcile` also the messages of `protocol` that such requests are made of.
