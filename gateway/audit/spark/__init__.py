# What the audit on Spark needs before it has anything to count.
#
#   spark_session.py     the session, and its JVM where it is our own
#   schema.py            the usage record as Spark reads it
#   arrow_map.py         how Spark's Python processes decode it
#   python_daemon.py     how these start
#   connector.py         the jars that PySpark lacks
#   progress.py          how far Spark is
#   java_admin.py        what brokers are asked by Java's client, whose properties librdkafka hasn't all
