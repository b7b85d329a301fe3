# Policies at run time: where they are kept, who may see them change, and how they look as a document. What they mean is
# policies/policy_set.py's.
