# Components that may be unusable, and without which a gateway goes on once it has been up.
#
#   optional_components.py  why each of them is lacking, and the attempts to make it
#   usage_pipeline.py       the usage log, as soon as its spool can be had
