# Limits that hold over several processes.
#
# keys.py    names of such limits
# demand.py  what this process takes of them, and tells
# shares.py  how limits are dealt out to gateways and workers
# lines.py   our part of each limit, and lines that go by it
