# The audit of the usage log, on Spark. The way through it: cli (options) -> job (session, sources, run) -> transforms
# (decode, count once, sum up, find gaps) -> tables (text, JSON). schema holds the types, connector the jars.
#
# Nothing else in the gateway imports this package, and this package imports nothing of the gateway's but where the
# cache is and which Java to take.
