# Batches that come more than once, or in order only.
#
#   fence.py        idempotent producers: what is rejected behind a rejected batch
#   duplicates.py   idempotent batches acknowledged a second time; compiled where it can be
#   repeats.py      rejected batches that come again
