# Questions that people ask of the sums: each is a function from rows of sums, in the order of time, to rows of an
# answer, so that both engines answer it alike.
#
#   command.py   their options
#   answering.py a question's rows as an answer: table, JSON, files
#   cost.py      what tenants owe, by a price file (prices.py)
#   episodes.py  refusals as episodes: who, when, why, and what became of them
#   slo.py       the share of time within limits
#   trend.py     past sums, and a forecast with its error
