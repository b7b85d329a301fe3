# Resource groups (PIP-82).
#
# names.py           what limits of groups and attachments are called
# finder.py          which tenant, namespace and group a topic or a principal is in
# group_limiters.py  groups at work: the limiters, and which topics have to ask
