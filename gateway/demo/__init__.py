# The demo: real producers over their limits in front of a real Kafka, audited to the byte.
#
#   command.py  its stages, and what it prints
#   load.py     the producers
#   sums.py     the totals from each independent source, compared
